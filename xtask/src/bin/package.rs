//! Makes the Debian packages; part of `cargo xtask package`.

#[path = "../package/mod.rs"]
mod package;

fn main() -> anyhow::Result<()> {
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or_else(|| anyhow::anyhow!("no repository"))?;
    for deb in package::package(&package::Options::new(repository))? {
        println!("{}", deb.display());
    }
    Ok(())
}
