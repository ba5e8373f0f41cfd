//! Differences that are really there are told, and no others.

use crossbeam_channel::unbounded;

use super::*;
use crate::{
    control::{
        apply,
        keeper::filters::Filters,
        kernel::{KernelEvent, Link, NeighborState, Part, Placement, Report, Route, RouteKind, Way},
        rib::{PortSpec, Rib},
    },
    tables::{Tables, prefixes::Prefixes4},
};

const WAN: Index = 2;

fn hop(gateway: &str) -> Hop {
    Hop { gateway: gateway.parse().ok(), index: Some(WAN), weight: 1, kernel_only: false, dead: false }
}

fn route(to: &str, gateways: &[&str]) -> Route {
    Route {
        to: to.parse().unwrap(),
        local_table: false,
        metric: 0,
        protocol: 3,
        kind: RouteKind::Unicast,
        way: Way::Hops(gateways.iter().map(|gateway| hop(gateway)).collect()),
    }
}

fn routes() -> Vec<Route> {
    vec![
        route("10.0.0.0/24", &[""]),
        route("192.0.2.0/24", &["10.0.0.2"]),
        route("192.0.2.128/25", &["10.0.0.3"]),
        route("198.51.100.0/24", &["10.0.0.2", "10.0.0.3"]),
        route("2001:db8::/32", &["fe80::1"]),
        Route { kind: RouteKind::Prohibit, ..route("203.0.113.0/24", &[]) },
    ]
}

/// A RIB with one port that has taken in `routes`.
fn rib(routes: &[Route]) -> Rib {
    let spec =
        PortSpec { name: "wan".into(), interface: Some("wan".into()), max_len: 9000, ..PortSpec::default() };
    let mut rib = Rib::new(vec![spec], &[], &[]);
    let link = Link {
        index: WAN,
        name: "wan".into(),
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        up: true,
        carrier: true,
        vlan: None,
    };
    let neighbor = KernelEvent::NeighborChanged {
        index: WAN,
        address: "10.0.0.2".parse().unwrap(),
        mac: Some([2, 0, 0, 0, 0, 2]),
        state: NeighborState::Reachable,
    };
    let news = routes.iter().map(|route| KernelEvent::RouteChanged(route.clone(), Placement::Before));
    for event in [KernelEvent::LinkChanged(link), neighbor].into_iter().chain(news) {
        rib.take(Report { listed: false, event });
    }
    rib.settle();
    rib
}

fn tables(rib: &mut Rib) -> Tables {
    let mut tables = Tables::new().unwrap();
    let changes = rib.take_changes();
    apply::apply(&mut tables, rib, &changes, true).unwrap();
    tables
}

/// Runs `test` with the way to a keeper that has this RIB and these tables in force.
fn with_keeper<R>(rib: &Rib, tables: &Tables, test: impl FnOnce(&Sender<Query>) -> R) -> R {
    let (queries, asked) = unbounded::<Query>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for query in asked {
                query(&View {
                    rib,
                    tables,
                    generation: 1,
                    follow: None,
                    ports: &[],
                    filters: &Filters::new(None, 1),
                    no_express: None,
                    captures: &std::sync::atomic::AtomicU32::new(0),
                });
            }
        });
        let result = test(&queries);
        drop(queries);
        result
    })
}

/// What a comparison of `rib` with a kernel that lists `routes` tells.
fn against_kernel(rib: &Rib, routes: &[Route]) -> Vec<(String, Option<String>, Option<String>)> {
    let tables = Tables::new().unwrap();
    with_keeper(rib, &tables, |queries| {
        let links = ask(queries, Links::of).unwrap();
        let look = |suspects: Option<&BTreeSet<Subject>>| {
            let mut rows = Rows::new();
            let reports = routes.iter().map(|route| Report {
                listed: true,
                event: KernelEvent::RouteChanged(route.clone(), Placement::After),
            });
            let listing = Listing::of(reports, &links, suspects).unwrap();
            compare_kernel(queries, &links, listing, suspects, &mut rows).unwrap();
            rows
        };
        let suspects: BTreeSet<Subject> = look(None).into_keys().collect();
        let rows = look(Some(&suspects));
        assert_eq!(rows.len(), suspects.len());
        let told = rows.into_iter().map(|(subject, row)| {
            let value = tell(&subject, &row);
            assert_eq!(value["between"], "kernel and rib");
            let text = |key: &str| value[key].as_str().map(str::to_owned);
            (value["of"].as_str().unwrap().to_owned(), text("kernel"), text("rib"))
        });
        told.collect()
    })
}

#[test]
fn a_rib_that_has_heard_everything_is_as_the_kernel() {
    let mut listed = routes();
    assert!(against_kernel(&rib(&routes()), &listed).is_empty());
    // In whatever order it lists them.
    listed.reverse();
    assert!(against_kernel(&rib(&routes()), &listed).is_empty());
}

#[test]
fn what_was_missed_is_told_with_both_sides() {
    let rib = rib(&routes());
    let mut listed = routes();
    listed[1] = route("192.0.2.0/24", &["10.0.0.3"]);
    listed[2].metric = 5;
    listed.remove(4);
    listed.push(route("0.0.0.0/0", &["10.0.0.2"]));
    listed.push(route("2001:db9::/32", &["fe80::1"]));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        against_kernel(&rib, &listed),
        [
            ("0.0.0.0/0".into(), some("via 10.0.0.2 dev wan"), None),
            ("192.0.2.0/24".into(), some("via 10.0.0.3 dev wan"), some("via 10.0.0.2 dev wan")),
            ("192.0.2.128/25".into(), some("via 10.0.0.3 dev wan metric 5"), some("via 10.0.0.3 dev wan")),
            ("2001:db8::/32".into(), None, some("via fe80::1 dev wan")),
            ("2001:db9::/32".into(), some("via fe80::1 dev wan"), None),
        ]
    );
    assert_eq!(against_kernel(&rib, &[]).len(), routes().len());
}

/// What a comparison with the tables tells, by subject.
fn against_tables(rib: &Rib, tables: &Tables) -> Vec<(String, Option<String>, Option<String>)> {
    let rows = with_keeper(rib, tables, compare).unwrap();
    let told = rows.iter().map(|row| {
        assert_eq!(row["between"], "rib and fib");
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        (text("of").unwrap(), text("rib"), text("fib"))
    });
    told.collect()
}

#[test]
fn tables_that_were_made_from_the_rib_do_not_differ() {
    let mut rib = rib(&routes());
    let tables = tables(&mut rib);
    assert_eq!(against_tables(&rib, &tables), []);
}

#[test]
fn a_prefix_missing_from_the_fib_or_left_in_it_is_told() {
    let mut rib = rib(&routes());
    let mut tables = tables(&mut rib);
    let mut wrong: Prefixes4 = rib.v4().installed.clone();
    wrong.remove(0xc000_0280, 25);
    wrong.insert(0x0808_0808, 32, wrong.get(0xc000_0200, 24).unwrap());
    tables.fib4.build(&wrong).unwrap();
    let told = against_tables(&rib, &tables);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        told,
        [
            ("8.8.0.0/18".into(), None, some("holds prefixes that the rib does not")),
            (
                "192.0.0.0/18".into(),
                some("192.0.2.128: via 10.0.0.3 on wan"),
                some("192.0.2.128: via 10.0.0.2 on wan")
            ),
        ]
    );
}

#[test]
fn next_hops_groups_ports_and_addresses_are_compared_too() {
    let mut rib = rib(&routes());
    let mut tables = tables(&mut rib);
    let id = rib.v4().installed.get(0xc000_0200, 24).unwrap();
    tables.next_hops[usize::from(id)].macs[5] = 0x77;
    tables.groups[0].buckets[3] = id + 1;
    tables.ports[0].mtu = 1400;
    tables.local = ["192.0.2.1".parse().unwrap()].into_iter().collect();
    let mut subjects: Vec<_> = against_tables(&rib, &tables).into_iter().map(|(of, ..)| of).collect();
    subjects.sort();
    let next_hop = format!("next hop {id}: via 10.0.0.2 on wan");
    assert_eq!(subjects, ["192.0.2.1", "group 0", &next_hop, "port 0"]);
}

#[test]
fn an_interrupted_listing_is_taken_from_its_new_beginning() {
    let listed = |event| Report { listed: true, event };
    let some = |to| listed(KernelEvent::RouteChanged(route(to, &["10.0.0.2"]), Placement::After));
    let reports = [
        listed(KernelEvent::DumpBegin(Part::Routes4)),
        some("192.0.2.0/24"),
        some("2001:db8::/32"),
        listed(KernelEvent::DumpBegin(Part::Routes4)),
        some("198.51.100.0/24"),
        listed(KernelEvent::DumpEnd { part: Part::Routes4, complete: true }),
    ];
    let listing = Listing::of(reports, &Links::default(), None).unwrap();
    let nets: Vec<String> = listing.digests.iter().map(|(net, _)| net.to_string()).collect();
    assert_eq!(nets, ["198.51.100.0/24", "2001:db8::/32"]);
    let end = listed(KernelEvent::DumpEnd { part: Part::Routes4, complete: false });
    assert!(Listing::of([end], &Links::default(), None).is_err());
}
