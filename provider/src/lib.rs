//! libibverbs provider for tbrdma: one library for every libibverbs.
//!
//! Providers use a private interface of libibverbs whose headers are not shipped and whose layouts
//! change with its releases. In-tree providers are rebuilt for each. This one links nothing of
//! libibverbs: when it is loaded it looks up the private functions of the libibverbs that loaded it
//! ([`library`]), chooses the layout ([`layout`]), and before the first context is used it checks
//! that choice against what libibverbs really does ([`selfcheck`]). If anything does not fit it
//! stays away, and says why.
//!
//! libibverbs looks for `libtbrdma-rdmavNN.so`, NN being its private ABI; packages ship one link
//! of that name for each of [`layout::PRIVATE_ABIS`].
//!
//! Control verbs go to the kernel through libibverbs' own command functions ([`verbs`]). Requests and
//! completions ([`qp`], [`qp_ex`], [`srq`], [`cq`]) pass through queues that are shared with the kernel ([`queue`]),
//! which has to be called only when it does not look by itself.

mod abi;
mod ah;
mod command;
mod cq;
mod cq_ex;
mod driver;
pub mod layout;
mod library;
mod mr;
mod public;
mod qp;
mod qp_ex;
mod queue;
mod requests;
mod selfcheck;
mod srq;
mod verbs;

/// Called by the dynamic linker when the library is loaded.
#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    driver::register();
}

/// A message for the user. `always`: also when no debugging was asked for.
fn say(always: bool, message: std::fmt::Arguments<'_>) {
    if always || wants_debug() {
        eprintln!("tbrdma: {message}");
    }
}

fn wants_debug() -> bool {
    std::env::var_os("TBRDMA_DEBUG").is_some() || std::env::var_os("IBV_SHOW_WARNINGS").is_some()
}
