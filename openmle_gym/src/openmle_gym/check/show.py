"""A report for people, on standard error."""

from rich.console import Console
from rich.table import Table

from openmle_gym.check.finding import Report

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def print_report(report: Report) -> None:
    """Prints the findings, the worst first."""
    console = Console(stderr=True)
    counts = {severity: len([f for f in report.findings if f.severity == severity]) for severity in _STYLES}
    table = Table(title=f"{report.package}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    for column in ("severity", "id", "message"):
        table.add_column(column, overflow="fold")
    for severity, style in _STYLES.items():
        for finding in report.findings:
            if finding.severity == severity:
                table.add_row(severity, finding.id, finding.message, style=style)
    console.print(table)
