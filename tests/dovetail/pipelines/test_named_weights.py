"""Files of weights that were named for a component that is not there, or that are not there themselves."""

import pytest

import dovetail
from dovetail import demo
from dovetail.compiler.errors import NoWeightsError, UsageError


def test_a_key_that_means_no_component_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no 'transformr', did you mean 'transformer'"):
        dovetail.load_pipeline(demo.folder(), weights={"transformr": "a.gguf"})


@pytest.mark.parametrize(("key", "of"), [("unet_", "'unet_', which is transformer here,"), ("vae", "'vae':")])
def test_a_file_that_is_not_there_is_named_with_its_key(key: str, of: str) -> None:
    with pytest.raises(NoWeightsError, match=f"there is no file a.gguf for {of}"):
        dovetail.load_pipeline(demo.folder(), weights={key: ["a.gguf"]})
