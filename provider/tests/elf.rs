//! What the built library asks of a system.

mod common;

use object::elf::FileHeader64;
use object::read::elf::{Dyn, FileHeader, Sym};
use object::Endianness;

type Header = FileHeader64<Endianness>;

/// Debian 12 has 2.36; the oldest system with a libibverbs of a known layout that we care for is
/// Ubuntu 22.04.
const NEWEST_GLIBC: (u32, u32) = (2, 34);

struct Facts {
    needed: Vec<String>,
    versions: Vec<String>,
    exported: Vec<String>,
}

fn facts(data: &[u8]) -> object::Result<Facts> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut facts = Facts {
        needed: Vec::new(),
        versions: Vec::new(),
        exported: Vec::new(),
    };
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries {
            if entry.tag32(endian) == Some(object::elf::DT_NEEDED) {
                facts.needed.push(text(entry.string(endian, strings)?));
            }
        }
    }
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                facts.versions.push(text(version.name(endian, strings)?));
            }
        }
    }
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM)?;
    for symbol in symbols.iter() {
        if !symbol.is_undefined(endian) && symbol.st_bind() != object::elf::STB_LOCAL {
            facts
                .exported
                .push(text(symbols.symbol_name(endian, symbol)?));
        }
    }
    Ok(facts)
}

#[test]
fn asks_for_no_libibverbs_and_no_new_glibc() {
    let data = std::fs::read(common::provider()).unwrap();
    let facts = facts(&data).unwrap();
    // One library serves every libibverbs because it is bound to none.
    for needed in &facts.needed {
        assert!(!needed.contains("ibverbs"), "it needs {needed}");
    }
    assert!(facts.needed.iter().any(|needed| needed == "libc.so.6"));
    let glibc: Vec<(u32, u32)> = facts
        .versions
        .iter()
        .filter_map(|version| version.strip_prefix("GLIBC_"))
        .filter_map(|number| {
            let mut parts = number.split('.').map(|part| part.parse().ok());
            Some((parts.next()??, parts.next()??))
        })
        .collect();
    assert!(!glibc.is_empty(), "no versions among {:?}", facts.versions);
    let newest = glibc.into_iter().max().unwrap();
    assert!(newest <= NEWEST_GLIBC, "it asks for glibc {newest:?}");
    for version in &facts.versions {
        assert!(!version.starts_with("IBVERBS"), "it asks for {version}");
    }
}

#[test]
fn exports_nothing() {
    let data = std::fs::read(common::provider()).unwrap();
    let exported = facts(&data).unwrap().exported;
    assert!(exported.is_empty(), "it exports {exported:?}");
}
