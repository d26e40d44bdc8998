"""When Python looks for circles of objects that nobody holds."""

import gc


def collect_from_now() -> None:
    """Switches collections of garbage on, which pass over what is made from now on alone, and seldom.

    Programs are made of many objects that stay; what is worth collecting is tensors, which no circle keeps.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
