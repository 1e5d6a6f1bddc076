"""The demo: place jobs, measure, break a link, measure again."""
