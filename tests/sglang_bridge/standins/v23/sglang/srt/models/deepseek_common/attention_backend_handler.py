"""Stand-in: the functions that choose SGLang's form of latent attention, by attention backend."""


class AttentionBackendRegistry:
    _handlers = {}  # noqa: RUF012

    @classmethod
    def register(cls, backend_name, handler_func):
        cls._handlers[backend_name] = handler_func


def _handle_attention_backend(attn, forward_batch, backend_name):
    return backend_name
