"""Stand-in for SGLang's model runner, with only the method that makes attention backends."""


class ModelRunner:
    def init_attention_backend(self):
        pass
