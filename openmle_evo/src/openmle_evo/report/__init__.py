"""What a search run did, for a person: one HTML page, and a short summary for the terminal."""

from openmle_evo.report.summary import print_summary
from openmle_evo.report.writer import write_report

__all__ = ["print_summary", "write_report"]
