//! Stands in for compiler_builtins: the kernel has memcpy and friends, and nothing else is wanted from it.
#![feature(compiler_builtins)]
#![allow(internal_features)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
