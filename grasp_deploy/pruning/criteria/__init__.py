"""One-shot scores on the flat axis of units: how much a frozen model would miss each of them."""
