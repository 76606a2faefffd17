"""What trains a model and what generates with it, behind the two protocols of `protocols`. Nothing here is imported by
`openmle_erl.rewards`, and only modules that say so need torch."""
