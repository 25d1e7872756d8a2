"""`make bench-reclaim`: how soon a lender has its own back from a thousand borrowing claims."""
