"""Many failures, one after another, on warm fabrics: drawn, played, measured, summed up."""
