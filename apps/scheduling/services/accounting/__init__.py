"""What was used and what it cost: metering, budgets, reports, measurements, and whether the books agree."""
