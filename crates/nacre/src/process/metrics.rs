//! `--metrics ADDR:PORT`: the parameters of `lctl get_param` as text for Prometheus, at `http://ADDR:PORT/metrics`.
//!
//! One rule makes every name, so that the name of a metric follows from its parameter: `mdc.DEVICE.FIELD` becomes
//! `nacre_mdc_FIELD{device="DEVICE"}`; `mdt.DEVICE.exports.CLIENT.FIELD` has the label `export` besides. A value that is
//! a number is a gauge; `key: number` within a text becomes `_KEY`; a line `NAME n samples [usecs] …` becomes
//! `_samples_total` and `_seconds_total` (or `_bytes_total`) with the label `op`; `rpc_stats` is a histogram. Texts are
//! left out, except states: `_state{state="FULL"} 1`.
//!
//! Each request has a thread of its own; requests are bounded in number, size and time, so that idle connections do not
//! hold up the collector. There is no authentication: bind it to an address that only the collector can reach. Only the
//! first half of a client's UUID is shown: the whole UUID is for the administrator of the machine.

use crate::query::tool::Tool;
use anyhow::{Context as _, Result, ensure};
use nacre_rt::Node;
use nacre_wire::params::{Calls, Kind, metric_name, row_of};
use nacre_wire::target::{GetParams, Param};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For one request, whatever the collector does.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Requests at a time; further connections are closed.
const REQUESTS_MAX: usize = 64;
/// Of the UUID of a client.
const EXPORT_CHARS: usize = 18;
const REQUEST_BYTES_MAX: usize = 8 << 10;

#[derive(clap::Args, Debug)]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics (everyone who reaches it can read them)
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<String>,
}

impl MetricsArgs {
    /// Serves what the islands of `node` tell over `socket`, until the process ends; the address, if it was asked for.
    pub(crate) fn serve(&self, node: &Node, socket: &Path) -> Result<Option<String>> {
        let Some(address) = &self.metrics else { return Ok(None) };
        let listener = TcpListener::bind(address).with_context(|| {
            format!("cannot serve metrics at {address}\nhint: --metrics ADDR:PORT, a free port of this host")
        })?;
        let bound = listener.local_addr()?.to_string();
        let (node, socket) = (node.clone(), socket.to_path_buf());
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            let running = Arc::new(());
            for stream in listener.incoming().flatten() {
                if Arc::strong_count(&running) > REQUESTS_MAX {
                    continue;
                }
                let (node, socket, place) = (node.clone(), socket.clone(), running.clone());
                let spawned = std::thread::Builder::new().name("metrics request".into()).spawn(move || {
                    if let Err(error) = reply(stream, &node, &socket) {
                        tracing::debug!("a request for metrics failed: {error:#}");
                    }
                    drop(place);
                });
                if let Err(error) = spawned {
                    tracing::debug!(%error, "no thread for a request for metrics");
                }
            }
        })?;
        Ok(Some(format!("metrics at http://{bound}/metrics")))
    }
}

fn reply(mut stream: TcpStream, node: &Node, socket: &Path) -> Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = read_request(&mut stream)?;
    let (status, body) = match Asked::of(&request) {
        Asked::Metrics => {
            let mut params = Vec::new();
            for island in node.islands() {
                // An island that does not reply in time has no figures in this response.
                if let Ok(mut tool) = Tool::connect(socket, island.name(), TIMEOUT) {
                    params.extend(tool.call(&GetParams { pattern: "**".into() })?.params);
                }
            }
            ("200 OK", render(&params))
        }
        Asked::OtherPath => ("404 Not Found", "nothing is here: the metrics are at /metrics\n".into()),
        Asked::OtherMethod => ("405 Method Not Allowed\r\nAllow: GET, HEAD", "GET /metrics\n".into()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if !request.starts_with("HEAD ") {
        stream.write_all(body.as_bytes())?;
    }
    Ok(())
}

/// The first line of a request. The rest of its head says nothing of interest, but a client may not like to be cut off in
/// it.
fn read_request(stream: &mut TcpStream) -> Result<String> {
    let until = Instant::now() + TIMEOUT;
    let mut head = Vec::new();
    let is_whole = |head: &[u8]| {
        head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
    };
    while !is_whole(&head) && head.len() < REQUEST_BYTES_MAX {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the request did not come in time");
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece)? {
            0 => break,
            bytes => head.extend_from_slice(&piece[..bytes]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    Ok(head.lines().next().context("an empty request")?.to_owned())
}

/// The resource in the first line of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Metrics,
    OtherPath,
    OtherMethod,
}
impl Asked {
    fn of(request: &str) -> Self {
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // Collectors may add parameters; there are none that mean something here.
        let path = target.split(['?', '#']).next().unwrap_or_default();
        match (method, path) {
            ("GET" | "HEAD", "/metrics" | "/metrics/" | "/") => Self::Metrics,
            ("GET" | "HEAD", _) => Self::OtherPath,
            _ => Self::OtherMethod,
        }
    }
}

/// Metrics by name: kind, help, lines.
#[derive(Default)]
struct Families(BTreeMap<String, (&'static str, String, Vec<String>)>);

impl Families {
    /// `suffix` is what a line of a histogram has behind the family's name.
    fn add(
        &mut self,
        of: &Of<'_>,
        key: &str,
        kind: &'static str,
        suffix: &str,
        label: Label<'_>,
        value: &str,
    ) {
        let name = format!("{}{key}", of.name);
        let (_, _, lines) =
            self.0.entry(name.clone()).or_insert_with(|| (kind, of.help.to_owned(), Vec::new()));
        let mut labels = of.labels.clone();
        if let Some((label, text)) = label {
            labels.push_str(&format!(",{label}=\"{}\"", escaped(text)));
        }
        lines.push(format!("{name}{suffix}{{{labels}}} {value}"));
    }
}
type Label<'a> = Option<(&'a str, &'a str)>;

/// The labels that all metrics of a parameter share.
struct Of<'a> {
    name: String,
    labels: String,
    help: &'a str,
}

/// The exposition format, version 0.0.4.
fn render(params: &[Param]) -> String {
    let mut families = Families::default();
    for param in params {
        let parts: Vec<&str> = param.name.split('.').collect();
        let [component, device, ref field @ ..] = parts[..] else { continue };
        // `ldlm.namespaces.DEVICE.FIELD`, as the field's tools have it.
        let device = match *field {
            [device, _] if component == "ldlm" => device,
            _ => device,
        };
        let mut labels = format!("device=\"{}\"", escaped(device));
        if let ["exports", export, _] = *field {
            let export = export.get(..EXPORT_CHARS).unwrap_or(export);
            labels.push_str(&format!(",export=\"{}\"", escaped(export)));
        }
        let of = Of { name: metric_name(component, field), labels, help: &param.help };
        if is_number(param.value.trim()) {
            families.add(&of, "", "gauge", "", None, param.value.trim());
            continue;
        }
        if row_of(&param.name).is_some_and(|row| row.kind == Kind::Counters(Calls::InFlight)) {
            histogram(&mut families, &of, &param.value);
        }
        for line in param.value.lines() {
            take_line(&mut families, &of, line);
        }
    }
    let mut out = String::new();
    for (name, (kind, help, lines)) in families.0 {
        let help = help.replace('\\', "\\\\").replace('\n', " ");
        let family = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        out.push_str(&family);
        lines.iter().for_each(|line| writeln!(out, "{line}").expect("a string takes everything"));
    }
    out
}

/// A counter `NAME n samples [unit] …`, or `key: number`, or the text of a state.
fn take_line(families: &mut Families, of: &Of<'_>, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [name, n, "samples", unit, ref rest @ ..] = words[..] {
        let op = Some(("op", name));
        families.add(of, "_samples_total", "counter", "", op, n);
        match (unit, rest.get(2).and_then(|sum| sum.parse::<u64>().ok())) {
            ("[usecs]", Some(sum)) => {
                let seconds = format!("{}.{:06}", sum / 1_000_000, sum % 1_000_000);
                families.add(of, "_seconds_total", "counter", "", op, &seconds);
            }
            ("[bytes]", Some(sum)) => families.add(of, "_bytes_total", "counter", "", op, &sum.to_string()),
            _ => {}
        }
        return;
    }
    let Some((key, value)) = line.trim().split_once(':') else { return };
    if !key.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_') {
        return;
    }
    let key = key.to_ascii_lowercase();
    match words[1..] {
        [value] if is_number(value) => families.add(of, &format!("_{key}"), "gauge", "", None, value),
        [value, "of", limit] if is_number(value) && is_number(limit) => {
            families.add(of, &format!("_{key}"), "gauge", "", None, value);
            families.add(of, &format!("_{key}_limit"), "gauge", "", None, limit);
        }
        _ if matches!(key.as_str(), "state" | "current_state" | "status") => {
            families.add(of, &format!("_{key}"), "gauge", "", Some(("state", value.trim())), "1");
        }
        _ => {}
    }
}

/// `rpc_stats`: how many were in flight when each was sent.
fn histogram(families: &mut Families, of: &Of<'_>, text: &str) {
    let (mut count, mut sum) = (0_u64, 0_u64);
    for line in text.lines() {
        let Some((number, rest)) = line.split_once(":\t") else { continue };
        let requests = rest.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let (Ok(in_flight), Some(requests)) = (number.parse::<u64>(), requests) else { continue };
        count += requests;
        sum += in_flight * requests;
        families.add(of, "", "histogram", "_bucket", Some(("le", number)), &count.to_string());
    }
    families.add(of, "", "histogram", "_bucket", Some(("le", "+Inf")), &count.to_string());
    families.add(of, "", "histogram", "_sum", None, &sum.to_string());
    families.add(of, "", "histogram", "_count", None, &count.to_string());
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() < 40 && text.bytes().all(|b| b.is_ascii_digit())
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_asks_in_more_than_one_way() {
        for (request, want) in [
            ("GET /metrics HTTP/1.1", Asked::Metrics),
            ("GET /metrics?x=1&name[]=a HTTP/1.1", Asked::Metrics),
            ("GET / HTTP/1.0", Asked::Metrics),
            ("GET /metrics", Asked::Metrics),
            ("HEAD /metrics HTTP/1.1", Asked::Metrics),
            ("GET /metric HTTP/1.1", Asked::OtherPath),
            ("GET /metrics/x HTTP/1.1", Asked::OtherPath),
            ("HEAD /x HTTP/1.1", Asked::OtherPath),
            ("POST /metrics HTTP/1.1", Asked::OtherMethod),
            ("", Asked::OtherMethod),
        ] {
            assert_eq!(Asked::of(request), want, "{request}");
        }
        crate::replay::replay("text", |bytes| {
            let _any = Asked::of(&String::from_utf8_lossy(bytes));
        });
    }

    #[test]
    fn every_figure_has_the_name_of_its_parameter() {
        let param = |name: &str, value: &str| Param {
            name: name.into(),
            value: value.into(),
            writable: false,
            help: format!("help of {}", name.rsplit('.').next().unwrap()),
        };
        let text = render(&[
            param("mdc.d-MDT0000-mdc-1.max_rpcs_in_flight", "8"),
            param("osc.d-OST0000-osc-1.max_rpcs_in_flight", "16"),
            param("mdc.d-MDT0000-mdc-1.stats", "mds_close   2 samples [usecs] 1 3 1500000 10\n"),
            param("llite.d-1.stats", "start_time  1.5 secs.nsecs\nwrite_bytes 2 samples [bytes] 1 3 4 10\n"),
            param(
                "mdc.d-MDT0000-mdc-1.import",
                "import:\n    name: d\n    state: FULL\n    rpcs:\n       inflight: 3\n",
            ),
            param(
                "mdc.d-MDT0000-mdc-1.rpc_stats",
                "modify_RPCs_in_flight:  2\n\n0:\t\t 0 0 0\n1:\t\t 5 50 50\n2:\t\t 5 50 100\n",
            ),
            param("mdt.d-MDT0000.exports.ab\"c.reply_data", "reply_cnt: 1\n"),
            param("mdt.d-MDT0000.storage", "clean_bytes: 5 of 9\n"),
            param("ldlm.namespaces.d-MDT0000-mdc-1.lock_count", "7"),
        ]);
        let want = "\
# HELP nacre_ldlm_lock_count help of lock_count
# TYPE nacre_ldlm_lock_count gauge
nacre_ldlm_lock_count{device=\"d-MDT0000-mdc-1\"} 7
# HELP nacre_llite_stats_bytes_total help of stats
# TYPE nacre_llite_stats_bytes_total counter
nacre_llite_stats_bytes_total{device=\"d-1\",op=\"write_bytes\"} 4
# HELP nacre_llite_stats_samples_total help of stats
# TYPE nacre_llite_stats_samples_total counter
nacre_llite_stats_samples_total{device=\"d-1\",op=\"write_bytes\"} 2
# HELP nacre_mdc_import_inflight help of import
# TYPE nacre_mdc_import_inflight gauge
nacre_mdc_import_inflight{device=\"d-MDT0000-mdc-1\"} 3
# HELP nacre_mdc_import_state help of import
# TYPE nacre_mdc_import_state gauge
nacre_mdc_import_state{device=\"d-MDT0000-mdc-1\",state=\"FULL\"} 1
# HELP nacre_mdc_max_rpcs_in_flight help of max_rpcs_in_flight
# TYPE nacre_mdc_max_rpcs_in_flight gauge
nacre_mdc_max_rpcs_in_flight{device=\"d-MDT0000-mdc-1\"} 8
# HELP nacre_mdc_rpc_stats help of rpc_stats
# TYPE nacre_mdc_rpc_stats histogram
nacre_mdc_rpc_stats_bucket{device=\"d-MDT0000-mdc-1\",le=\"0\"} 0
nacre_mdc_rpc_stats_bucket{device=\"d-MDT0000-mdc-1\",le=\"1\"} 5
nacre_mdc_rpc_stats_bucket{device=\"d-MDT0000-mdc-1\",le=\"2\"} 10
nacre_mdc_rpc_stats_bucket{device=\"d-MDT0000-mdc-1\",le=\"+Inf\"} 10
nacre_mdc_rpc_stats_sum{device=\"d-MDT0000-mdc-1\"} 15
nacre_mdc_rpc_stats_count{device=\"d-MDT0000-mdc-1\"} 10
# HELP nacre_mdc_rpc_stats_modify_rpcs_in_flight help of rpc_stats
# TYPE nacre_mdc_rpc_stats_modify_rpcs_in_flight gauge
nacre_mdc_rpc_stats_modify_rpcs_in_flight{device=\"d-MDT0000-mdc-1\"} 2
# HELP nacre_mdc_stats_samples_total help of stats
# TYPE nacre_mdc_stats_samples_total counter
nacre_mdc_stats_samples_total{device=\"d-MDT0000-mdc-1\",op=\"mds_close\"} 2
# HELP nacre_mdc_stats_seconds_total help of stats
# TYPE nacre_mdc_stats_seconds_total counter
nacre_mdc_stats_seconds_total{device=\"d-MDT0000-mdc-1\",op=\"mds_close\"} 1.500000
# HELP nacre_mdt_exports_reply_data_reply_cnt help of reply_data
# TYPE nacre_mdt_exports_reply_data_reply_cnt gauge
nacre_mdt_exports_reply_data_reply_cnt{device=\"d-MDT0000\",export=\"ab\\\"c\"} 1
# HELP nacre_mdt_storage_clean_bytes help of storage
# TYPE nacre_mdt_storage_clean_bytes gauge
nacre_mdt_storage_clean_bytes{device=\"d-MDT0000\"} 5
# HELP nacre_mdt_storage_clean_bytes_limit help of storage
# TYPE nacre_mdt_storage_clean_bytes_limit gauge
nacre_mdt_storage_clean_bytes_limit{device=\"d-MDT0000\"} 9
# HELP nacre_osc_max_rpcs_in_flight help of max_rpcs_in_flight
# TYPE nacre_osc_max_rpcs_in_flight gauge
nacre_osc_max_rpcs_in_flight{device=\"d-OST0000-osc-1\"} 16
";
        assert_eq!(text, want);
    }
}
