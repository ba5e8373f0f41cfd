//! Bad files, and the one error that each must get.

/// Two ports, as the beginning of a file: 6 lines.
pub(super) const TWO: &str = "[[port]]\nname = \"wan\"\naddresses = [\"203.0.113.2/30\", \"2001:db8::2/64\"]\n\
                   [[port]]\nname = \"lan\"\naddresses = [\"10.0.0.1/24\"]\n";

/// Files, and the one error in each. A line that begins with `+` comes after [`TWO`].
pub(super) const BAD: &[(&str, &str)] = &[
    ("", "f:1: port: missing; add at least one [[port]] with device = \"xdp:eth0\""),
    ("[[port]]", "f:1: port.device: missing; add device = \"xdp:eth0\""),
    (
        "[port]\nname = \"a\"",
        "f:1: port: there can be several, so it takes two pairs of brackets; write [[port]]",
    ),
    ("port = 3", "f:1: port: found integer; write a section, [[port]]"),
    ("port = []", "f:1: port: an empty list; write [[port]] sections"),
    ("port = [3]", "f:1: port: found integer; write a table, { name = ... }"),
    (
        "[[port]]\nname = \"a b\"",
        "f:2: port.name: \"a b\" cannot be a name; use 1 to 15 letters, digits, \".\", \"_\" or \"-\", a letter or digit first",
    ),
    ("[[port]]\nname = 5", "f:2: port.name: found integer; write a string, \"...\""),
    (
        "[[port]]\ndevice = \"\"",
        "f:2: port.device: no device is named: write netmap:IFACE, xdp:IFACE, pcap:FILE, pipe:NAME or gen:",
    ),
    (
        "[[port]]\ndevice = \"pcap:/tmp/a.pcap\"",
        "f:1: port.name: \"pcap:/tmp/a.pcap\" gives the port no name; add name = \"lan\"",
    ),
    (
        "[[port]]\nname = \"a\"\nmac = \"2:0:0:0:0:1\"",
        "f:3: port.mac: \"2:0:0:0:0:1\" is not a MAC address; write it as \"02:00:00:00:00:01\"",
    ),
    (
        "[[port]]\nname = \"a\"\nmac = \"01:00:00:00:00:01\"",
        "f:3: port.mac: 01:00:00:00:00:01 is a group's address; the first byte of a station's is even",
    ),
    (
        "[[port]]\nname = \"a\"\nmtu = \"1500\"",
        "f:3: port.mtu: found string; write a whole number from 68 to 65535",
    ),
    (
        "[[port]]\nname = \"a\"\nmtu = 99999999999999999999",
        "f:3: port.mtu: 99999999999999999999 is out of range; write a whole number from 68 to 65535",
    ),
    (
        "[[port]]\nname = \"a\"\naddresses = [\"10.0.0.1\"]",
        "f:3: port.addresses: \"10.0.0.1\" has no prefix length; write \"10.0.0.1/32\" for one address",
    ),
    (
        "[[port]]\nname = \"a\"\naddresses = [\"10.0.0.0/24\"]",
        "f:3: port.addresses: 10.0.0.0/24 is the network's own or its broadcast address; write a host's, as 10.0.0.1/24",
    ),
    (
        "[[port]]\nname = \"a\"\naddresses = [\"10.0.0.1/33\"]",
        "f:3: port.addresses: \"33\" is not a prefix length of 10.0.0.1; write 0 to 32",
    ),
    ("[[port]]\nname = \"a\"\nvlans = [5, 5]", "f:3: port.vlans: 5 is given twice; remove one"),
    (
        "[[port]]\nname = \"a\"\nvlans = [\"7.s8\"]",
        "f:3: port.vlans: \"7.s8\" is no VLAN; write 100, \"s200\" for a service tag (802.1ad), or \"s200.100\" for a tag in it",
    ),
    ("[[port]]\nname = \"a\"\nvlans = [true]", "f:3: port.vlans: found boolean; write a VLAN, 100"),
    (
        "[[port]]\nname = \"a\"\nvlans = [5]\n[[port]]\nname = \"a.5\"\ndevice = \"xdp:b\"",
        "f:6: port.device: a sub-port has the device of port \"a\"; remove this",
    ),
    (
        "[[port]]\nname = \"interface\"\nvlans = [\"s200.100\"]",
        "f:3: port.vlans: \"interface.s200.100\" is longer than 15 bytes; give the port a shorter name",
    ),
    (
        "[[port]]\nname = \"a\"\naddresses = [\"10.0.0.1/24\"]\nvlans = [5]\n[[port]]\nname = \"a.5\"\naddresses = [\"10.0.0.1/24\"]",
        "f:7: port.addresses: 10.0.0.1 is an address of a already; remove one",
    ),
    (
        "[[port]]\nname = \"a\"\nvlans = [4095]",
        "f:3: port.vlans: 4095 is out of range; write a whole number from 1 to 4094",
    ),
    ("[[port]]\nname = \"a\"\nvlans = 5", "f:3: port.vlans: found integer; write a list, [...]"),
    (
        "[[port]]\nname = \"a\"\n[[port]]\nname = \"a\"\ndevice = \"b\"",
        "f:4: port.name: \"a\" is a port on line 2 already; rename one",
    ),
    (
        "[[port]]\nname = \"a\"\nvlans = [7]\n[[port]]\nname = \"a.7\"\n[[port]]\nname = \"a.7\"",
        "f:7: port.name: has a section on line 5 already; remove one",
    ),
    (
        "[[port]]\nname = \"a\"\ndevice = \"xdp:e\"\n[[port]]\nname = \"b\"\ndevice = \"xdp:e\"",
        "f:6: port.device: \"e\" is used on line 3 already; each port needs its own",
    ),
    (
        "+[[port]]\nname = \"dmz\"\naddresses = [\"10.0.0.1/8\"]",
        "f:9: port.addresses: 10.0.0.1 is an address of lan already; remove one",
    ),
    ("mtu = 5\n[[port]]\nname = \"a\"", "f:1: mtu: a key outside its section; put it under [[port]]"),
    ("+[routes]", "f:7: routes: unknown section; did you mean [[route]]?"),
    ("+[[daemon]]", "f:7: daemon: there is only one, so it takes one pair of brackets; write [daemon]"),
    ("+[daemon]\ncpus = [1, 1]", "f:8: daemon.cpus: 1 is given twice; remove one"),
    ("+[daemon]\ncpus = []", "f:8: daemon.cpus: an empty list; leave the key out, or put something in"),
    (
        "+[daemon]\nruntime_dir = \"run\"",
        "f:8: daemon.runtime_dir: \"run\" is not absolute; write the whole path, as \"/var/run/sweepd\"",
    ),
    (
        "+[daemon]\nmetrics = \"localhost:9188\"",
        "f:8: daemon.metrics: \"localhost:9188\" is not an address with a port; write an address and a port, as \"127.0.0.1:9188\" or \"[::1]:9188\"",
    ),
    (
        "+[daemon]\nsocket_owner = \"\"",
        "f:8: daemon.socket_owner: \"\" is no user's name; write one that this machine knows, or its number",
    ),
    (
        "+[daemon]\nsocket_group = \"a:b\"",
        "f:8: daemon.socket_group: \"a:b\" is no group's name; write one that this machine knows, or its number",
    ),
    (
        "+[daemon]\nuser = \"a b\"",
        "f:8: daemon.user: \"a b\" is no user's name; write one that this machine knows, or its number",
    ),
    ("+[kernel]\nroutes = 1", "f:8: kernel.routes: found integer; write true or false"),
    ("+[[route]]\nvia = \"10.0.0.9\"", "f:7: route.to: missing; add to = \"0.0.0.0/0\""),
    (
        "+[[route]]\nto = \"0.0.0.0/0\"",
        "f:7: route.via: missing; say where the route leads with via, port or type",
    ),
    (
        "+[[route]]\nto = \"default\"\nport = \"lan\"",
        "f:8: route.to: \"default\" is of no family; write \"0.0.0.0/0\" or \"::/0\"",
    ),
    (
        "+[[route]]\nto = \"224.0.0.0/4\"\nport = \"lan\"",
        "f:8: route.to: 224.0.0.0/4 is never forwarded to; remove the route",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nport = \"lam\"",
        "f:9: route.port: there is no port \"lam\"; did you mean \"lan\"?",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nport = \"xyz\"",
        "f:9: route.port: there is no port \"xyz\"; the ports are wan, lan",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\ntype = \"drop\"",
        "f:9: route.type: \"drop\" is not known; write \"blackhole\", \"unreachable\" or \"prohibit\"",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\ntype = \"prohibit\"\nvia = \"10.0.0.9\"",
        "f:10: route.via: a route with a type leads nowhere; remove this or the type",
    ),
    (
        "+[[route]]\nto = \"2001:db8:9::/48\"\nvia = \"10.0.0.9\"",
        "f:9: route.via: an IPv6 route needs an IPv6 gateway; 10.0.0.9 is IPv4",
    ),
    (
        "+[[route]]\nto = \"::/0\"\nvia = \"fe80::1\"",
        "f:9: route.via: fe80::1 is link-local and may be on any link; add port = \"...\"",
    ),
    (
        "+[[route]]\nto = \"::/0\"\nvia = \"fe80::1%wan\"",
        "f:9: route.via: \"fe80::1%wan\" has a zone; write \"fe80::1\" and port = \"wan\"",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.0.0.9/24\"",
        "f:9: route.via: \"10.0.0.9/24\" is a prefix; write \"10.0.0.9\", without the length",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.0.0.1\"",
        "f:9: route.via: 10.0.0.1 is an address of port \"lan\" itself; write the gateway's",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.0.0.9\"\n[[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.0.0.8\"",
        "f:11: route.to: 10.9.0.0/16 has a route on line 8 already; for several gateways write one route with via = [{ gateway = \"...\" }, { gateway = \"...\" }]",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = []",
        "f:9: route.via: an empty list; add { gateway = \"...\" }",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = [\"10.0.0.9\"]",
        "f:9: route.via: found a string; write { gateway = \"10.0.0.9\" }",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = [\n{ gateway = \"10.0.0.9\" },\n{ gateway = \"10.0.0.8\", weight = 0 }]",
        "f:11: route.via.weight: 0 is out of range; write a whole number from 1 to 256",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = [{ gateway = \"10.0.0.9\" }, { gateway = \"10.0.0.9\" }]",
        "f:9: route.via.gateway: 10.0.0.9 is given twice; give it a weight instead",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nport = \"lan\"\nvia = [{ gateway = \"10.0.0.9\" }]",
        "f:9: route.port: write the port into each entry of via: { gateway = \"...\", port = \"...\" }",
    ),
    (
        "+[[route]]\nto = \"10.9.0.0/16\"\nvia = [{ gatway = \"10.0.0.9\", gateway = \"10.0.0.9\" }]",
        "f:9: route.via.gatway: unknown key; did you mean \"gateway\"?",
    ),
    (
        "+[[neighbor]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:99\"",
        "f:7: neighbor.port: missing; add port = \"...\"",
    ),
    (
        "+[[neighbor]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:99\"\nport = \"eth0\"",
        "f:10: neighbor.port: there is no port \"eth0\"; the ports are wan, lan",
    ),
    (
        "+[[neighbor]]\naddress = \"10.0.0.1\"\nmac = \"02:00:00:00:00:99\"\nport = \"lan\"",
        "f:8: neighbor.address: 10.0.0.1 is an address of port \"lan\" itself; write the neighbour's",
    ),
    (
        "+[[neighbor]]\naddress = \"224.0.0.5\"\nmac = \"02:00:00:00:00:99\"\nport = \"lan\"",
        "f:8: neighbor.address: 224.0.0.5 is a multicast address; write a single host's",
    ),
    ("+[[acl]]", "f:7: acl.action: missing; add action = \"permit\" or \"deny\""),
    (
        "+[[acl]]\naction = \"deny\"\nprotocol = \"sctp\"",
        "f:9: acl.protocol: \"sctp\" is not known; write \"tcp\", \"udp\", \"icmp\" or \"icmp6\", or a number from 0 to 255",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nto_ports = [25]",
        "f:9: acl.to_ports: only TCP and UDP have ports; add protocol = \"tcp\" or \"udp\"",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nprotocol = \"tcp\"\nto_ports = \"90-80\"",
        "f:10: acl.to_ports: \"90-80\" runs backwards; write \"80-90\"",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nfrom = \"10.0.0.0/8\"\nto = \"2001:db8::/32\"",
        "f:10: acl.to: is of the other family than from, so nothing fits; give both in one family",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nfrom = \"10.0.0.0/8\"\nprotocol = \"icmp6\"",
        "f:10: acl.protocol: is of the other family than from and to; use \"icmp\" with IPv4, \"icmp6\" with IPv6",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nname = \"x\"\n[[acl]]\naction = \"deny\"\nname = \"x\"",
        "f:12: acl.name: \"x\" is a rule on line 7 already; rename one",
    ),
    ("+[[masquerade]]", "f:7: masquerade.out: missing; add out = \"...\", the port towards the world"),
    (
        "+[[masquerade]]\nout = \"wan\"\nfrom = [\"2001:db8::/32\"]",
        "f:9: masquerade.from: 2001:db8::/32 is IPv6, which is not masqueraded; remove it",
    ),
    (
        "+[[masquerade]]\nout = \"wan\"\nports = \"80-90\"",
        "f:9: masquerade.ports: ports below 1024 are the host's services'; begin at 1024",
    ),
    (
        "+[[masquerade]]\nout = \"wan\"\nudp_timeout = 300",
        "f:9: masquerade.udp_timeout: 300 has no unit; write \"300s\" for seconds",
    ),
    (
        "+[[masquerade]]\nout = \"wan\"\nudp_timeout = \"5 min\"",
        "f:9: masquerade.udp_timeout: \"5 min\" is not a duration; write numbers with units (d, h, m, s), as \"2h4m\"",
    ),
    (
        "+[[forward_port]]\nin = \"wan\"\nprotocol = \"tcp\"\nport = 443\nto = \"10.0.0.5:8443\"",
        "f:8: forward_port.in: nothing is masqueraded on \"wan\"; add a [[masquerade]] with out = \"wan\"",
    ),
    (
        "+[[forward_port]]\nin = \"wan\"\nprotocol = \"tcp\"\nport = 443\nto = \"10.0.0.5\"",
        "f:11: forward_port.to: \"10.0.0.5\" is not an address with a port; write an address and a port, as \"10.0.0.5:8443\"",
    ),
    ("+[daemon]\nidle = \"spin\"\nidle = \"spin\"", "f:9: not TOML at column 1: duplicate key; remove one"),
    (
        "+[[neighbor]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:99\"\nport = \"lan\"\n\
         [[neighbor]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:98\"\nport = \"lan\"",
        "f:12: neighbor.address: 10.0.0.9 is a neighbour on line 8 already; remove one",
    ),
    (
        "+[[acl]]\naction = \"deny\"\nprotocol = \"tcp\"\nfrom_ports = [0]",
        "f:10: acl.from_ports: 0 is out of range; write a whole number from 1 to 65535",
    ),
];
