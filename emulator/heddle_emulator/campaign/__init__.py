"""Campaigns: draw many failures, play them one after another on warm fabrics, and sum up."""
