mod basic;
mod soak;
mod world;
