"""The story of make demo: place jobs, measure, break a link, measure again."""
