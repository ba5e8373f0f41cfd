//! `sweepd show`: what the running daemon knows, as tables for people or as JSON for programs.

use std::path::Path;

use ipnet::IpNet;
use serde_json::{Value, json};
use sweepd::forward::verdict::Verdict;

use super::{
    Failure,
    args::{Place, ShowArgs, What},
    client, print,
    table::{Cell, Table},
};

/// Asks the daemon whose files are in `runtime_dir`, and prints what it says.
///
/// # Errors
/// No daemon runs, it does not have what is asked for, or tables that are compared differ.
pub fn show(args: &ShowArgs, runtime_dir: &Path) -> Result<(), Failure> {
    let mut request = json!({ "version": client::VERSION, "command": "show", "what": args.what.name() });
    if let What::Routes { at: Some(Place::Address(address)), .. } = args.what {
        request["address"] = json!(address);
    }
    if let What::Flows { filter } | What::Masquerade { filter } = &args.what {
        request["filter"] = json!(filter.join(" "));
    }
    let compares = matches!(args.what, What::Routes { diff: true, .. });
    if compares {
        request["diff"] = json!(true);
    }
    let mut data = client::ask(runtime_dir, &request)?;
    if let (What::Routes { at: Some(Place::Prefix(prefix)), .. }, Value::Array(rows)) =
        (&args.what, &mut data)
    {
        let is_in = |row: &Value| row["to"].as_str()?.parse::<IpNet>().ok().map(|to| prefix.contains(&to));
        rows.retain(|row| is_in(row) == Some(true));
    }
    print(&if args.json { format!("{data}\n") } else { render(&args.what, &data) })?;
    let differs = compares && data.as_array().is_none_or(|rows| !rows.is_empty());
    // As diff(1) has it; what differs has been printed.
    if differs { Err(Failure { code: 1, lines: Vec::new() }) } else { Ok(()) }
}

/// The data as people read it. Control characters must not reach the terminal.
fn render(what: &What, data: &Value) -> String {
    let mut text = layout(what, data);
    text.retain(|c| !c.is_control() || c == '\n');
    text
}

fn layout(what: &What, data: &Value) -> String {
    match what {
        What::Ports => ports(data),
        What::Routes { diff: true, .. } => differences(data),
        What::Routes { at: Some(Place::Address(_)), .. } => route(data),
        What::Routes { .. } => routes(data),
        What::Neighbors => neighbors(data),
        What::Verdicts { all } => verdicts(data, *all),
        What::Tables => pairs(data),
        What::Acl => acl(data),
        What::Flows { .. } => flows(data),
        What::Masquerade { .. } => mappings(data),
    }
}

/// A field as it is; `-` if it is not known.
fn cell(value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Text("-".into()),
        Value::String(text) => Cell::Text(text.clone()),
        Value::Number(number) => number.as_u64().map_or_else(|| Cell::Text(number.to_string()), Cell::Number),
        Value::Array(list) if list.is_empty() => Cell::Text("-".into()),
        Value::Array(list) => {
            let texts: Vec<_> =
                list.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), Into::into)).collect();
            Cell::Text(texts.join(" "))
        }
        other => Cell::Text(other.to_string()),
    }
}

fn rows(data: &Value) -> impl Iterator<Item = &Value> {
    data.as_array().into_iter().flatten()
}

fn ports(data: &Value) -> String {
    let mut table = Table::new(&[
        "port",
        "device",
        "state",
        "mtu",
        "rx packets",
        "rx bytes",
        "rx errors",
        "rx dropped",
        "tx packets",
        "tx bytes",
        "tx errors",
        "tx dropped",
        "express",
    ]);
    let mut details = Table::new(&["port", "interface", "mac", "rings", "mode", "addresses"]);
    for port in rows(data) {
        let state = match port["up"].as_bool() {
            Some(true) => "up",
            Some(false) => "down",
            None => "-",
        };
        let mut cells = vec![cell(&port["name"]), cell(&port["device"]), Cell::Text(state.into())];
        cells.extend(
            [
                "mtu",
                "rx_packets",
                "rx_bytes",
                "rx_errors",
                "rx_dropped",
                "tx_packets",
                "tx_bytes",
                "tx_errors",
                "tx_dropped",
                "express_packets",
            ]
            .map(|key| cell(&port[key])),
        );
        table.row(cells);
        details.row(["name", "interface", "mac", "rings", "mode", "addresses"].map(|key| cell(&port[key])));
    }
    let mut gone = String::new();
    let express: String = rows(data).filter_map(express).collect();
    if !express.is_empty() {
        gone = format!("\n{express}");
    }
    for port in rows(data) {
        if let (Some(name), Some(reason)) = (port["name"].as_str(), port["reason"].as_str()) {
            gone += &format!("\nport {name} is gone: {reason}\n");
        }
    }
    format!("{}\n{}{gone}", table.render(), details.render())
}

/// Whether a port's packets are forwarded in the driver, and where not, why, in a line of its own.
fn express(port: &Value) -> Option<String> {
    let (name, state) = (port["name"].as_str()?, port["express"].as_str()?);
    let mut text = format!("port {name}: express is {state}");
    if let Some(reason) = port["express_reason"].as_str().filter(|reason| *reason != state) {
        text += &format!(" ({reason})");
    }
    if port["takes_frames"] == false {
        text += "; its interface takes no redirected frames: what leaves by it goes through workers";
    }
    Some(text + "\n")
}

fn routes(data: &Value) -> String {
    let mut table = Table::new(&["to", "via", "port", "weight", "metric", "type", "source"]);
    for route in rows(data) {
        let mut source = route["source"].as_str().unwrap_or("?").to_owned();
        if let Some(protocol) = route["protocol"].as_str() {
            source += &format!(" ({protocol})");
        }
        if route["active"] == false {
            source += &format!(", inactive: {}", route["reason"].as_str().unwrap_or("?"));
        }
        let kind = [cell(&route["metric"]), cell(&route["type"]), Cell::Text(source)];
        let mut to = cell(&route["to"]);
        let mut hops = rows(&route["via"]).peekable();
        if hops.peek().is_none() {
            let none = || Cell::Text("-".into());
            table.row([to.clone(), none(), none(), none()].into_iter().chain(kind.clone()));
        }
        for hop in hops {
            table.row([to, gateway(hop), way_out(hop), cell(&hop["weight"])].into_iter().chain(kind.clone()));
            // A second next hop belongs to the route above it.
            to = Cell::Text(String::new());
        }
    }
    table.render()
}

fn differences(data: &Value) -> String {
    if rows(data).next().is_none() {
        return "no differences\n".into();
    }
    let mut table = Table::new(&["of", "between", "kernel", "rib", "fib"]);
    for row in rows(data) {
        table.row(["of", "between", "kernel", "rib", "fib"].map(|key| cell(&row[key])));
    }
    table.render()
}

fn gateway(hop: &Value) -> Cell {
    if hop["gateway"].is_null() { Cell::Text("on link".into()) } else { cell(&hop["gateway"]) }
}

/// The port, or the interface that is none.
fn way_out(hop: &Value) -> Cell {
    match (hop["port"].as_str(), hop["device"].as_str()) {
        (None, Some(device)) => Cell::Text(format!("{device} (the host's)")),
        _ => cell(&hop["port"]),
    }
}

fn route(data: &Value) -> String {
    let mut table = Table::new(&["address", "route", "source", "next hop", "port", "mac", "verdict"]);
    let route = &data["route"];
    let verdict = match (&data["verdict"], data["port_up"].as_bool()) {
        (verdict, Some(false)) => Cell::Text(format!("{}, but the port is down", text(verdict))),
        (verdict, _) if verdict == "forwarded" && data["mac"].is_null() => {
            Cell::Text("forwarded, once the next hop's MAC is known".into())
        }
        (verdict, _) => cell(verdict),
    };
    table.row([
        cell(&data["address"]),
        cell(&route["to"]),
        cell(&route["source"]),
        cell(&data["next_hop"]),
        cell(&data["port"]),
        cell(&data["mac"]),
        verdict,
    ]);
    let hops = rows(&route["via"]).count();
    let others = if hops > 1 { format!("one of {hops} next hops, by flow\n") } else { String::new() };
    table.render() + &others
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// An address and its port, if it has one.
fn end(row: &Value, address: &str, port: &str) -> Cell {
    match (row[address].as_str(), row[port].as_u64()) {
        (Some(address), Some(port)) if address.contains(':') => Cell::Text(format!("[{address}]:{port}")),
        (Some(address), Some(port)) => Cell::Text(format!("{address}:{port}")),
        _ => cell(&row[address]),
    }
}

/// How many of how many are shown.
fn shown(data: &Value, rows: usize) -> String {
    let (matched, total) = (data["matched"].as_u64().unwrap_or(0), data["total"].as_u64().unwrap_or(0));
    format!("{rows} shown, {matched} fit, {total} in all\n")
}

fn flows(data: &Value) -> String {
    let mut table = Table::new(&["protocol", "from", "to", "outside", "port", "state", "idle s", "worker"]);
    for row in rows(&data["flows"]) {
        table.row([
            cell(&row["protocol"]),
            end(row, "from", "from_port"),
            end(row, "to", "to_port"),
            end(row, "outside", "outside_port"),
            cell(&row["out"]),
            cell(&row["state"]),
            cell(&row["idle"]),
            cell(&row["worker"]),
        ]);
    }
    format!("{}{}", table.render(), shown(data, rows(&data["flows"]).count()))
}

fn mappings(data: &Value) -> String {
    let mut table = Table::new(&["protocol", "inside", "outside", "port", "flows", "worker"]);
    for row in rows(&data["mappings"]) {
        table.row([
            cell(&row["protocol"]),
            end(row, "inside", "inside_port"),
            end(row, "outside", "outside_port"),
            cell(&row["out"]),
            cell(&row["flows"]),
            cell(&row["worker"]),
        ]);
    }
    let mut used = Table::new(&["address", "protocol", "ports taken", "worker"]);
    for row in rows(&data["used"]) {
        used.row(["address", "protocol", "ports", "worker"].map(|key| cell(&row[key])));
    }
    let count = rows(&data["mappings"]).count();
    format!("{}{}\n{}", table.render(), shown(data, count), used.render())
}

fn neighbors(data: &Value) -> String {
    let mut table = Table::new(&["address", "port", "mac", "state", "source"]);
    for neighbor in rows(data) {
        table.row(["address", "port", "mac", "state", "source"].map(|key| cell(&neighbor[key])));
    }
    table.render()
}

/// The rules from the first on, what each fits in few words, and the packets that it fitted.
fn acl(data: &Value) -> String {
    if rows(data).next().is_none() {
        return "no rules: everything is permitted\n".into();
    }
    let mut table = Table::new(&["rule", "action", "hits", "fits"]);
    for row in rows(data) {
        let name = if row["rule"].is_null() { Cell::Text("(no rule)".into()) } else { cell(&row["rule"]) };
        table.row([name, cell(&row["action"]), cell(&row["hits"]), Cell::Text(fits(row))]);
    }
    table.render()
}

/// What a rule asks for; `all` when that is nothing.
fn fits(row: &Value) -> String {
    let mut words = Vec::new();
    for key in ["in", "out", "from", "to"] {
        let list: Vec<_> = rows(&row[key]).filter_map(Value::as_str).collect();
        if !list.is_empty() {
            words.push(format!("{key} {}", list.join(",")));
        }
    }
    if let Some(protocol) = row["protocol"].as_u64() {
        words.push(match protocol {
            1 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            58 => "icmp6".into(),
            other => format!("protocol {other}"),
        });
    }
    for (key, word) in [("from_ports", "from port"), ("to_ports", "to port")] {
        let list: Vec<_> = rows(&row[key]).filter_map(Value::as_str).collect();
        if !list.is_empty() {
            words.push(format!("{word} {}", list.join(",")));
        }
    }
    if row["log"] == true {
        words.push("log".into());
    }
    match words.is_empty() {
        true if row["rule"].is_null() => String::from("what no rule fits"),
        true => "all".into(),
        false => words.join(" "),
    }
}

/// What has happened at all, or whatever can happen, in words.
fn verdicts(data: &Value, all: bool) -> String {
    let mut table = Table::new(&["verdict", "packets", "meaning"]);
    for (name, count) in data.as_object().into_iter().flatten() {
        if count.as_u64() == Some(0) && !all {
            continue;
        }
        let about = match name.as_str() {
            "held" => "Wait for a neighbour now.",
            "in_transit" => "Between two workers now.",
            name => Verdict::ALL.iter().find(|v| v.name() == name).map_or("", |v| v.about()),
        };
        table.row([Cell::Text(name.clone()), cell(count), Cell::Text(about.into())]);
    }
    table.render()
}

/// Numbers in a table; texts of any length behind it, each on a line of its own.
fn pairs(data: &Value) -> String {
    let mut table = Table::new(&["what", "value"]);
    let mut texts = String::new();
    for (name, value) in data.as_object().into_iter().flatten() {
        let name = name.replace('_', " ");
        match value.as_array() {
            Some(list) => {
                for text in list.iter().filter_map(Value::as_str) {
                    texts += &format!("{name}: {text}\n");
                }
            }
            None => table.row([Cell::Text(name), cell(value)]),
        }
    }
    table.render() + &texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_route_with_two_next_hops_takes_two_rows() {
        let data = json!([
            { "to": "0.0.0.0/0", "type": "unicast", "source": "static", "protocol": null, "metric": null, "via": [
                { "gateway": "203.0.113.1", "port": "wan", "device": null, "weight": 2 },
                { "gateway": null, "port": null, "device": "wg0", "weight": 1 }] },
            { "to": "11.0.0.0/8", "type": "unicast", "source": "static", "active": false, "reason": "port b is down",
              "via": [{ "gateway": "203.0.113.9", "port": null, "device": null, "weight": 1 }] },
            { "to": "10.0.0.0/8", "type": "blackhole", "source": "kernel", "protocol": "bird", "metric": 32,
              "via": [] },
        ]);
        assert_eq!(
            render(&What::Routes { at: None, diff: false }, &data),
            "to          via          port              weight  metric  type       source\n\
             0.0.0.0/0   203.0.113.1  wan                    2       -  unicast    static\n\
            \u{20}           on link      wg0 (the host's)       1       -  unicast    static\n\
             11.0.0.0/8  203.0.113.9  -                      1       -  unicast    static, inactive: port b is down\n\
             10.0.0.0/8  -            -                      -      32  blackhole  kernel (bird)\n"
        );
    }

    #[test]
    fn differences_show_what_each_side_says() {
        assert_eq!(render(&What::Routes { at: None, diff: true }, &json!([])), "no differences\n");
        let data = json!([{ "of": "192.0.2.0/24", "between": "kernel and rib",
            "kernel": "via 10.0.0.1 dev wan", "rib": null, "fib": null }]);
        assert_eq!(
            render(&What::Routes { at: None, diff: true }, &data),
            "of            between         kernel                rib  fib\n\
             192.0.2.0/24  kernel and rib  via 10.0.0.1 dev wan  -    -\n"
        );
    }

    #[test]
    fn ports_show_their_counters_and_then_their_nature() {
        let data = json!([{ "name": "wan", "device": "xdp:eth0", "up": true, "rx_packets": 1, "rx_bytes": 60,
            "rx_errors": 0, "rx_dropped": 0, "tx_packets": 2, "tx_bytes": 120, "tx_errors": 0, "tx_dropped": 0,
            "express_packets": 0, "mtu": 1500, "mac": null, "addresses": ["10.0.0.1/24", "fe80::1/64"] }]);
        let text = render(&What::Ports, &data);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("port  device    state   mtu  rx packets"), "{text}");
        assert!(lines[1].starts_with("wan   xdp:eth0  up     1500           1"), "{text}");
        assert_eq!(lines[4], "wan   -          -    -      -     10.0.0.1/24 fe80::1/64");
    }

    #[test]
    fn verdicts_that_never_happened_are_left_out() {
        let text = render(
            &What::Verdicts { all: false },
            &json!({ "forwarded": 7, "runt": 0, "held": 1, "in_transit": 0 }),
        );
        assert_eq!(
            text,
            "verdict    packets  meaning\n\
             forwarded        7  Sent on towards its destination.\n\
             held             1  Wait for a neighbour now.\n"
        );
    }

    #[test]
    fn flows_show_their_ends_and_how_many_there_are() {
        let data = json!({ "total": 3, "matched": 1, "flows": [{ "protocol": "udp", "from": "10.0.0.7",
            "from_port": 4000, "to": "2001:db8::1", "to_port": 53, "outside": null, "outside_port": null,
            "out": null, "state": "answered", "idle": 2, "worker": 0 }] });
        assert_eq!(
            render(&What::Flows { filter: Vec::new() }, &data),
            "protocol  from           to                outside  port  state     idle s  worker\n\
             udp       10.0.0.7:4000  [2001:db8::1]:53  -        -     answered       2       0\n\
             1 shown, 1 fit, 3 in all\n"
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "name",
            "via",
            "to",
            "up",
            "gateway",
            "weight",
            "route",
            "held",
            "x\u{1b}[0m",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            word.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((word.clone().prop_map(String::from), inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_the_daemon_sends_is_shown_without_a_panic(data in any_json()) {
            for what in [What::Ports, What::Routes { at: None, diff: false },
                What::Routes { at: None, diff: true },
                What::Routes { at: Some(Place::Address([10, 0, 0, 1].into())), diff: false }, What::Neighbors, What::Flows { filter: Vec::new() },
                What::Masquerade { filter: Vec::new() }, What::Verdicts { all: false }, What::Acl,
                What::Tables]
            {
                let text = render(&what, &data);
                prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
            }
        }
    }
}
