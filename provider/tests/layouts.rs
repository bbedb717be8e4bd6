//! The table of layouts against what was read from the headers of each release (data/layouts.json).

use serde_json::Value;
use tbrdma::layout::{Family, FAMILIES, PRIVATE_ABIS};

#[test]
fn tables_are_those_of_the_releases() {
    let facts: Value = serde_json::from_str(include_str!("data/layouts.json")).unwrap();
    assert_eq!(facts.as_object().unwrap().len(), FAMILIES.len());
    for family in FAMILIES {
        let facts = &facts[format!("{family:?}")];
        let wanted: Vec<&str> = facts["operations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        assert_eq!(
            family.operations().collect::<Vec<_>>(),
            wanted,
            "{family:?}"
        );
        let offset = facts["context_offset"].as_u64().unwrap();
        assert_eq!(family.context_offset() as u64, offset, "{family:?}");
    }
}

#[test]
fn families_are_told_apart() {
    let with = |private_abi, functions: &[&str]| {
        Family::choose(private_abi, |name| {
            functions.contains(&name.to_str().unwrap())
        })
    };
    let (dm, order) = ("ibv_import_dm", "ibv_query_qp_data_in_order");
    assert_eq!(with(34, &[]), Some(Family::L34));
    assert_eq!(with(34, &[dm]), Some(Family::L35));
    assert_eq!(with(34, &[dm, order]), Some(Family::L36));
    assert_eq!(with(57, &[dm, order]), Some(Family::L36));
    assert_eq!(with(59, &[dm, order]), Some(Family::L59));
    let speed = "ibv_query_port_speed";
    assert_eq!(with(59, &[dm, order, speed]), Some(Family::L62));
    assert_eq!(with(64, &[dm, order, speed]), Some(Family::L64));
    assert_eq!(with(65, &[dm, order, speed]), Some(Family::L65));
    for unknown in [0, 33, 35, 58, 60, 63, 66, 1000] {
        assert_eq!(with(unknown, &[dm, order, speed]), None);
    }
    for known in PRIVATE_ABIS {
        assert!(with(known, &[]).is_some());
    }
}

#[test]
fn positions_follow_the_order() {
    for family in FAMILIES {
        for (at, name) in family.operations().enumerate() {
            assert_eq!(family.slot(name), Some(at));
        }
        assert_eq!(family.slot("no_such_operation"), None);
    }
}

#[test]
fn packages_have_a_link_for_each_private_abi() {
    let list = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/deb/ibverbs-provider-tbrdma/files"
    );
    let list = std::fs::read_to_string(list).unwrap();
    let mut linked: Vec<u32> = list
        .split_whitespace()
        .filter_map(|word| word.split_once("libtbrdma-rdmav")?.1.strip_suffix(".so"))
        .map(|number| number.parse().unwrap())
        .collect();
    linked.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(linked, PRIVATE_ABIS);
}
