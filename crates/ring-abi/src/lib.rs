//! Layout of the ring API's queues and entries.
#![no_std]
