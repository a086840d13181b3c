//! Endpoints, memory regions, queues, quotas and poll ownership above the engine.
#![no_std]
