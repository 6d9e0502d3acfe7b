"""The depthwise causal convolution with state that linear layers run before their recurrence."""
