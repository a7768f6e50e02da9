//! The pure scheduler: state to plan. No threads, no tensors, no clock but the one passed in.
