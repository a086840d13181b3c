mod basic;
mod world;
