"""``zpd explore``: walks every interleaving of zpd's own state machines over a modelled network."""
