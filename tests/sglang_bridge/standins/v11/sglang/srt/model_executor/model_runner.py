"""Stand-in: a model runner, as far as it makes attention backends."""


class ModelRunner:
    def init_attention_backend(self):
        pass
