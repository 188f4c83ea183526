"""How the seconds and bytes of a step come about: a layer, its stage, the stage's rank, the step.

`step_costs` puts the parts of a layer together and splits layers over stages, `estimate` sums them by closed form,
`timeline` runs the same parts operation by operation. `legality` says which layouts there are."""
