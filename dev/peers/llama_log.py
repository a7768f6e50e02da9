"""What llama.cpp logs: errors alone."""

import llama_cpp


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    if level == 4:  # an error
        print(text.decode(errors="replace"), end="")
