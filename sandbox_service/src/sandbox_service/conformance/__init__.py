"""Checks of behaviour against any running sandbox service, over its HTTP API alone.

    check.py       what a check is, and the list of all
    service.py     the service as the checks see it: submit, wait, read
    package.py     the small task that programs are graded on
    run.py         runs the checks and reports
    cli.py         `openmle-sandbox conformance`

and the checks, by what they are about: limits, kill, output, artifacts, secrets, answers, network, kernel, grading,
protocol (what the published clients rely on), extensions and cancelling (what this service offers beyond), fairness,
recovery. The hostile
programs stand next to the check that judges them. What they learn they tell through the job's log, outcome or score,
and what they take is bounded, so that a service that fails a check is not harmed by it more than it must be.
"""
