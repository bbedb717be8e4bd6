//! See the crate description.

fn main() {}
