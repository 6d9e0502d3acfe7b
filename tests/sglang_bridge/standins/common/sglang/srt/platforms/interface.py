"""Stand-in: the interface of SGLang's platforms."""


class SRTPlatform:
    pass
