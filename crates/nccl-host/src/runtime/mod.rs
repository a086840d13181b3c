//! A GPU made of host memory and threads: what the fake CUDA and HIP functions stand on.

mod event;
mod memory;
mod progress;
mod stream;

pub use event::Event;
pub use memory::{Allocation, Kind, allocate, find, free};
pub(crate) use progress::Progress;
pub use stream::Stream;
pub(crate) use stream::advance_tasks;
