/* SPDX-License-Identifier: GPL-2.0-only */
/* Fed to bindgen: shows that it finds libclang, and libclang's version, which it prints as a warning. */
#pragma message("clang version " __clang_version__)
