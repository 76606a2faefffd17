"""The routes of the HTTP API, by what they are about, and what they share."""
