mod basic;
mod hostile;
mod life;
mod loss;
mod refusal;
mod soak;
mod ways;
mod world;
