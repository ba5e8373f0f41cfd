# What a person does with this project, for GNU make and BSD make alike. `make help` lists it.

PREFIX = /usr/local
MANDIR = $(PREFIX)/share/man
DESTDIR =
CARGO = cargo
# Seconds for each fuzz target.
FUZZ_SECONDS = 20
# How often `make kill9` kills.
KILLS = 1000
# Seconds of `make soak`.
SOAK_SECONDS = 3600
# Where cargo puts what it builds.
TARGET = $${CARGO_TARGET_DIR:-target}

all: build

help:
	@echo 'make run      build, then route made-up traffic and show the live counter (Ctrl-C ends it)'
	@echo 'make test     every check and test; as root it installs what it needs and tests real interfaces'
	@echo 'make lab      two hosts and a router in network namespaces: ping, traceroute, iperf3 (as root)'
	@echo 'make kill9    KILLS=$(KILLS) kills under load, at any moment (as root)'
	@echo 'make soak     everything that can go wrong at once, for SOAK_SECONDS=$(SOAK_SECONDS) (as root)'
	@echo 'make bench    everything measured, into docs/performance.md (as root, on a quiet machine)'
	@echo 'make bench-follow   following the kernel, with a full Internet table (as root)'
	@echo 'make fuzz     the fuzz targets, FUZZ_SECONDS=$(FUZZ_SECONDS) each'
	@echo 'make freebsd  type-check and lint for FreeBSD, from Debian on x86-64 (downloads 0.5 GB)'
	@echo 'make bpf      the bytes of the express program, from its source (clang and llvm)'
	@echo 'make deb      a Debian package, in target/debian'
	@echo 'make man      the manual pages, formatted'
	@echo 'make install  to DESTDIR and PREFIX=$(PREFIX), after make build'
	@echo 'make clean    remove what was built'

build:
	$(CARGO) build --release --locked

run: build
	@$(TARGET)/release/sweepd demo

test:
	@CARGO='$(CARGO)' FUZZ_SECONDS='$(FUZZ_SECONDS)' scripts/test.sh

lab:
	@scripts/lab.sh demo

kill9:
	@scripts/deps.sh
	SWEEPD_REQUIRE_LAB=1 SWEEPD_KILLS='$(KILLS)' $(CARGO) test --locked --test lab kills:: -- --nocapture

soak:
	@scripts/deps.sh
	SWEEPD_REQUIRE_LAB=1 SWEEPD_SOAK_SECONDS='$(SOAK_SECONDS)' $(CARGO) test --locked --test lab soak:: -- --nocapture

bench:
	$(CARGO) build --release --locked --package sweepd --package sweepd-bench
	@[ "$$(id -u)" -ne 0 ] || scripts/deps.sh bench
	@CARGO='$(CARGO)' scripts/tables.sh
	@$(TARGET)/release/sweepd-bench report --document docs/performance.md

bench-follow:
	$(CARGO) build --release --locked --package sweepd --package sweepd-bench
	@CARGO='$(CARGO)' scripts/tables.sh
	@$(TARGET)/release/sweepd-bench follow --document docs/performance.md

fuzz:
	scripts/fuzz.sh all $(FUZZ_SECONDS)

freebsd:
	scripts/check-freebsd.sh clippy --workspace --all-targets
	scripts/check-freebsd.sh abi scripts/freebsd-abi.c

bpf:
	scripts/bpf.sh make

deb: build
	@scripts/deb.sh $(TARGET)/release/sweepd $(TARGET)/debian

man:
	@man man/sweepd.8 man/sweepd-stat.8 man/sweepd.toml.5

install:
	@PREFIX='$(PREFIX)' MANDIR='$(MANDIR)' DESTDIR='$(DESTDIR)' scripts/install.sh

clean:
	$(CARGO) clean
	$(CARGO) clean --manifest-path fuzz/Cargo.toml

.PHONY: all help build run test lab kill9 soak bench bench-follow fuzz freebsd bpf deb man install clean
