"""Stand-in: the backend of Kimi delta attention layers, which Switchrail does not serve in this version."""


class KDAAttnBackend:
    def __init__(self, model_runner):
        self.made = True
