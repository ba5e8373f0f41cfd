#!/bin/sh
# Tests rc.d/sweepd with a plain POSIX shell, a stand-in for FreeBSD's rc.subr and one for sweepd:
# which commands come of start, stop, restart, reload, status and configtest, and that a wrong
# configuration stops a start. Prints what failed; exits 0 when nothing did.
set -eu
cd "$(dirname "$0")/.."

shell=$(command -v dash || echo sh)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# What rc.subr(8) does with the variables of a script, as far as this one goes.
cat >"$dir/rc.subr" <<'END'
load_rc_config() { . "$RC_DIR/rc.conf"; }

run_rc_command()
{
	_command=$1
	eval "_precmd=\${${_command}_precmd:-} _own=\${${_command}_cmd:-}"
	eval "rc_flags=\${${name}_flags:-}"
	case " start stop restart status rcvar ${extra_commands:-} " in
	*" $_command "*) ;;
	*) echo "$0: unknown directive '$_command'." >&2; return 1 ;;
	esac
	if [ "$_command" = start ]; then
		eval "_on=\$$rcvar"
		[ "$_on" = YES ] || { echo "disabled"; return 1; }
		for _file in $required_files; do
			[ -r "$_file" ] || { echo "$_file is not readable."; return 1; }
		done
		for _module in $required_modules; do
			grep -qx "$_module" "$RC_DIR/modules" || echo "kldload $_module" >>"$RC_DIR/did"
		done
	fi
	if [ -n "$_precmd" ]; then $_precmd || return 1; fi
	if [ -n "$_own" ]; then $_own; return; fi
	case $_command in
	start) echo "$command $rc_flags" >>"$RC_DIR/did" ;;
	stop) echo "kill $(cat "$pidfile") ${procname:-$command}" >>"$RC_DIR/did" ;;
	restart) run_rc_command stop && run_rc_command start ;;
	status) [ -s "$pidfile" ] && echo "$name is running as pid $(cat "$pidfile")." ;;
	esac
}
END

# A sweepd that says what it is asked, and finds a configuration wrong that says so.
cat >"$dir/sweepd" <<'END'
#!/bin/sh
echo "sweepd $*" >>"$RC_DIR/did"
[ "$1" != check ] || ! grep -q wrong "$3"
END
chmod +x "$dir/sweepd"
sed "s|/etc/rc\.subr|$dir/rc.subr|; s|/usr/local/sbin/sweepd|$dir/sweepd|; s|/var/run|$dir|" rc.d/sweepd >"$dir/rc"
export RC_DIR="$dir"

failed=0
# expect CODE COMMAND LINE...: runs the script; these lines must be what came of it.
expect() {
    code=$1 command=$2
    shift 2
    : >"$dir/did"
    got=0
    $shell "$dir/rc" "$command" >"$dir/said" 2>&1 || got=$?
    [ "$got" != 0 ] && got=1
    printf '%s\n' "$@" | sed '/^$/d' >"$dir/wanted"
    if [ "$got" != "$code" ] || ! cmp -s "$dir/wanted" "$dir/did"; then
        echo "$command: exit code $got, not $code; or else:"
        diff "$dir/wanted" "$dir/did" || true
        cat "$dir/said"
        failed=1
    fi
}

conf() {
    printf '%s\n' "$@" >"$dir/rc.conf"
}

$shell -n rc.d/sweepd
echo fine >"$dir/sweepd.toml"
echo 4711 >"$dir/sweepd.pid"
: >"$dir/modules"
check="sweepd check --config $dir/sweepd.toml"
daemon="/usr/sbin/daemon -f -S -T sweepd -l daemon -R 5 -P $dir/sweepd.pid $dir/sweepd run --config $dir/sweepd.toml"

conf "sweepd_config=$dir/sweepd.toml"
expect 1 start ''

conf "sweepd_enable=YES" "sweepd_config=$dir/sweepd.toml"
expect 0 start 'kldload netmap' "$check" "$daemon "
echo netmap >"$dir/modules"
expect 0 start "$check" "$daemon "
# The one that is told to end is daemon(8): killed alone, sweepd would be started again.
expect 0 stop "kill 4711 /usr/sbin/daemon"
expect 0 restart "$check" "kill 4711 /usr/sbin/daemon" "$check" "$daemon "
expect 0 reload "sweepd reload --config $dir/sweepd.toml"
expect 0 configtest "$check"
expect 0 status ''
grep -q 'running as pid 4711' "$dir/said" || { echo "status says nothing"; failed=1; }

conf "sweepd_enable=YES" "sweepd_config=$dir/sweepd.toml" 'sweepd_flags="--more"'
expect 0 start "$check" "$daemon --more"

# A wrong configuration stops a start, and a restart before it stops what runs.
conf "sweepd_enable=YES" "sweepd_config=$dir/sweepd.toml"
echo wrong >"$dir/sweepd.toml"
expect 1 start "$check"
expect 1 restart "$check"
expect 1 configtest "$check"

conf "sweepd_enable=YES" "sweepd_config=$dir/missing.toml"
expect 1 start ''
[ "$failed" = 0 ] && echo "rc.d/sweepd does what it should, by $shell"
exit "$failed"
