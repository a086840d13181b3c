//! A GPU made of host memory and threads: what the fake CUDA and HIP functions stand on.

mod event;
mod memory;
mod stream;

pub use event::Event;
pub use memory::{Allocation, Kind, allocate, find, free};
pub use stream::Stream;
