//! Options that `serve` and the offline commands share, checked once at start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use url::Url;

/// Where ClickHouse is and who Tributary is there, from `--upstream URL` or the config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// `http://host:port/`, without credentials, path or query.
    pub url: Url,
    pub user: String,
    pub password: String,
    /// Database in which unqualified table names of view declarations are looked up.
    pub database: String,
}

/// Why an upstream address was refused; the text names the address and what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error(
        "'{0}' is no address of a ClickHouse HTTP interface ({1}); write it as http://user:password@host:8123/?database=name"
    )]
    Malformed(String, String),
    #[error("'{0}': only http:// addresses are understood; write it as http://user:password@host:8123/?database=name")]
    Scheme(String),
}

impl UpstreamConfig {
    /// Reads `http://[user[:password]@]host[:port]/[?database=..&user=..&password=..]`; the port defaults to 8123.
    pub fn parse(address: &str) -> Result<Self, AddressError> {
        let mut url = Url::parse(address).map_err(|e| AddressError::Malformed(address.into(), e.to_string()))?;
        if url.scheme() != "http" {
            return Err(AddressError::Scheme(address.into()));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(AddressError::Malformed(address.into(), "no host".into()));
        }
        // `Url` drops a port that is the scheme's own, so ":80" must be told from no port at all.
        let names_port = address.trim_end_matches('/').rsplit('@').next().is_some_and(|rest| {
            let authority = rest.trim_start_matches("http://").split(['/', '?']).next().unwrap_or_default();
            authority.rsplit(']').next().is_some_and(|tail| tail.contains(':'))
        });
        if url.port().is_none() && !names_port {
            let _ = url.set_port(Some(8123));
        }
        let decode = |s: &str| {
            url::form_urlencoded::parse(format!("v={}", s.replace('+', "%2B")).as_bytes())
                .next()
                .map(|(_, v)| v.into_owned())
                .unwrap_or_default()
        };
        let mut config = UpstreamConfig {
            user: if url.username().is_empty() { "default".into() } else { decode(url.username()) },
            password: url.password().map(decode).unwrap_or_default(),
            database: "default".into(),
            url: url.clone(),
        };
        for (name, value) in url.query_pairs() {
            match &*name {
                "database" => config.database = value.into_owned(),
                "user" => config.user = value.into_owned(),
                "password" => config.password = value.into_owned(),
                other => {
                    return Err(AddressError::Malformed(
                        address.into(),
                        format!("unknown parameter '{other}'; database, user and password are known"),
                    ));
                }
            }
        }
        config.url.set_query(None);
        config.url.set_path("/");
        let _ = config.url.set_username("");
        let _ = config.url.set_password(None);
        Ok(config)
    }
}

/// Where view declarations are read from: a YAML file, or a folder whose `*.yaml` and `*.yml` files are read.
pub type ViewsPath = PathBuf;

/// Where `serve` listens for HTTP clients unless told otherwise: one above ClickHouse's own port, on loopback.
pub const DEFAULT_LISTEN_HTTP: &str = "127.0.0.1:8124";

/// The configuration file of `serve` (config/tributary.yaml explains every key). Options on the command line go first.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub upstream: UpstreamKeys,
    pub listen: ListenKeys,
    /// A file with view declarations or a folder of such files; relative to the configuration file.
    pub views: Option<ViewsPath>,
    /// Of views that do not say it themselves.
    #[serde(deserialize_with = "of_all_views")]
    pub consistency: Consistency,
    pub maintenance: MaintenanceKeys,
    /// The share of answers from views that is compared with the raw tables' answers, 0 to 1.
    #[serde(deserialize_with = "share")]
    pub verify: f64,
    /// What to log, as `--log` takes it.
    pub log: Option<String>,
}

/// How old the state may be that an accelerated answer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// No older than the arrival of the query.
    #[default]
    Exact,
    /// At most this much older.
    Bounded(Duration),
    /// As of the last rebuild, on the operator's word.
    Manual,
}

impl Consistency {
    /// `exact`, `manual`, `bounded: 10s` in quotes, or `bounded: 10s` on a line of its own below the key.
    pub fn from_yaml(value: &serde_yaml::Value) -> Option<Self> {
        match value {
            serde_yaml::Value::String(text) => Self::from_text(text.trim()),
            serde_yaml::Value::Mapping(entries) if entries.len() == 1 => match entries.get("bounded") {
                Some(serde_yaml::Value::String(age)) => duration(age).map(Self::Bounded),
                _ => None,
            },
            _ => None,
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "exact" => Some(Self::Exact),
            "manual" => Some(Self::Manual),
            other => {
                let age = other.strip_prefix("bounded")?;
                duration(age.strip_prefix(':').unwrap_or(age).trim()).map(Self::Bounded)
            }
        }
    }
}

/// The consistency of views that say nothing of it themselves. That of single views alone may be `manual`.
fn of_all_views<'de, D: Deserializer<'de>>(from: D) -> Result<Consistency, D::Error> {
    from.deserialize_any(OfAllViews)
}

fn share<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(from)?;
    (0.0..=1.0).contains(&share).then_some(share).ok_or_else(|| D::Error::custom("verify is a share from 0 to 1"))
}

/// Visits, so that an error knows its line.
struct OfAllViews;

impl OfAllViews {
    fn judge<E: Error>(value: &serde_yaml::Value) -> Result<Consistency, E> {
        match Consistency::from_yaml(value) {
            Some(Consistency::Manual) => Err(E::custom("manual belongs into the declaration of a view")),
            Some(consistency) => Ok(consistency),
            None => Err(E::custom("it is exact, or 'bounded: 10s' (units ms, s, m, h)")),
        }
    }
}

impl<'de> Visitor<'de> for OfAllViews {
    type Value = Consistency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("exact, or 'bounded: 10s' (units ms, s, m, h)")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Consistency, E> {
        Self::judge(&text.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Consistency, A::Error> {
        Self::judge(&serde_yaml::Value::deserialize(MapAccessDeserializer::new(map))?)
    }
}

/// `500ms`, `10s`, `2m`, `1h`; not zero.
fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit_at].parse().ok()?;
    let unit_ms = match text[unit_at..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let duration_ms = number.checked_mul(unit_ms)?;
    (duration_ms > 0).then(|| Duration::from_millis(duration_ms))
}

/// The keys under `maintenance:`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaintenanceKeys {
    /// Whether `serve` keeps the views up to date.
    pub enabled: bool,
    /// Between two looks at the sources, such as `1s` or `500ms`.
    pub interval: Time,
    /// Threads that merge states; also the number of views worked at, and of queries under way, at once.
    pub threads: u16,
    /// The share of the time in which views may be worked at, all together, from 0.01 to 1.
    pub share: f64,
    /// Bytes of partial states held at once, such as `512MiB`.
    pub memory: Size,
}

impl Default for MaintenanceKeys {
    fn default() -> Self {
        Self { enabled: true, interval: Time(Duration::from_secs(1)), threads: 1, share: 0.3, memory: Size(1 << 30) }
    }
}

/// `10s`, `500ms`, `2m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        duration(&text).map(Self).ok_or_else(|| format!("'{text}' is no time such as 500ms, 10s or 2m"))
    }
}

/// `512MiB`, `4GiB`, `1000000`: bytes, or with a unit of 1024s; at least 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub usize);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "write a size such as 512MiB or 4GiB".to_string();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err(malformed()),
        };
        let number: usize = text[..digits].parse().map_err(|_| malformed())?;
        let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes >= 1 << 20);
        bytes.map(Self).ok_or_else(|| "at least 1MiB".into())
    }
}

/// The keys under `upstream:`. `user`, `password` and `database` go over the parts of `url`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamKeys {
    pub url: Option<String>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: Option<String>,
}

/// The keys under `listen:`, each `address:port`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListenKeys {
    pub http: Option<String>,
    /// The admin listener: status and metrics. Off unless named.
    pub admin: Option<String>,
}

/// A configuration file that cannot be used. The text names file, line and column.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}")]
    Unreadable { path: String, error: std::io::Error },
    #[error("{path}{place}: {message}")]
    Malformed { path: String, place: String, message: String },
}

impl Config {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: name.clone(), error })?;
        let mut config = Self::parse(&text, &name)?;
        if let (Some(views), Some(folder)) = (&config.views, path.parent()) {
            config.views = Some(folder.join(views));
        }
        Ok(config)
    }

    /// Reads the text of a configuration file; `name` is how errors call it.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        // A file of comments only is a configuration with every default.
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_yaml::from_str(text).map_err(|error| {
            let place = error.location().map(|l| format!(":{}:{}", l.line(), l.column())).unwrap_or_default();
            // The place is told in front, where editors find it.
            let text = error.to_string();
            let message = text.split(" at line ").next().unwrap_or_default().to_owned();
            ConfigError::Malformed { path: name.into(), place, message }
        })
    }
}

/// Physical cores, of those that this process may use: two threads of one core merge hardly more than one.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let siblings = (0..1024).map_while(|cpu| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
    });
    match siblings.collect::<std::collections::BTreeSet<String>>().len() {
        0 => logical,
        physical => logical.min(physical),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_no_more_than_threads() {
        assert!((1..=std::thread::available_parallelism().unwrap().get()).contains(&physical_cores()));
    }

    #[test]
    fn the_shipped_configuration_names_every_key_and_only_those() {
        let text = include_str!("../config/tributary.yaml");
        assert_eq!(Config::parse(text, "config/tributary.yaml").unwrap(), Config::default());
        // With the comment signs taken off its keys, it still reads.
        let keys = text.lines().map(|l| l.strip_prefix("#: ").unwrap_or(l)).collect::<Vec<_>>().join("\n");
        let config = Config::parse(&keys, "config/tributary.yaml").unwrap();
        assert_eq!(config.listen.http.as_deref(), Some(DEFAULT_LISTEN_HTTP));
        assert!(config.views.is_some() && config.log.is_some() && config.listen.admin.is_some());
        assert_eq!(config.maintenance, MaintenanceKeys::default());
        let UpstreamKeys { url, user, password, database } = config.upstream;
        assert!(url.is_some() && user.is_some() && password.is_some() && database.is_some());
    }

    #[test]
    fn sizes_and_times_have_units() {
        let size = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("512 mb"), Ok(512 << 20));
        assert_eq!(size("2000000"), Ok(2_000_000));
        for wrong in ["", "GiB", "1TiB1", "1x", "-1", "10", "99999999999999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Time::try_from("500ms".to_string()), Ok(Time(Duration::from_millis(500))));
        assert_eq!(Time::try_from("2m".to_string()), Ok(Time(Duration::from_secs(120))));
        for wrong in ["", "s", "1", "1.5s", "0s", "99999999999999999h"] {
            assert!(Time::try_from(wrong.to_string()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_key_is_told_with_its_line() {
        let error = Config::parse("log: info\nlisten:\n  htpp: x\n", "t.yaml").unwrap_err().to_string();
        assert!(error.starts_with("t.yaml:3:3: ") && error.contains("htpp") && error.contains("http"), "{error}");
        let error = Config::parse("log: [1]\n", "t.yaml").unwrap_err().to_string();
        assert!(error.starts_with("t.yaml:1:6: ") && error.contains("string"), "{error}");
        let error = Config::parse("log: a\nlog: b\n", "t.yaml").unwrap_err().to_string();
        assert!(error.contains("duplicate"), "{error}");
        let error = Config::parse("log: 'a\n", "t.yaml").unwrap_err().to_string();
        assert!(error.starts_with("t.yaml:"), "{error}");
    }

    #[test]
    fn a_share_is_from_nothing_to_all() {
        let read = |text: &str| Config::parse(text, "t.yaml").map(|c| c.verify).map_err(|e| e.to_string());
        assert_eq!([read("log: info\n"), read("verify: 0.01\n"), read("verify: 1\n")], [Ok(0.0), Ok(0.01), Ok(1.0)]);
        for wrong in ["-0.1", "1.5", "all", "1%"] {
            let error = read(&format!("verify: {wrong}\n")).unwrap_err();
            assert!(error.starts_with("t.yaml:1:") && error.contains("verify"), "{error}");
        }
    }

    #[test]
    fn consistency_is_exact_or_bounded() {
        let read = |text: &str| Config::parse(text, "t.yaml").map(|c| c.consistency).map_err(|e| e.to_string());
        assert_eq!(read("log: info\n"), Ok(Consistency::Exact));
        assert_eq!(read("consistency: exact\n"), Ok(Consistency::Exact));
        let bounded = Ok(Consistency::Bounded(Duration::from_secs(10)));
        assert_eq!(read("consistency: 'bounded: 10s'\n"), bounded);
        assert_eq!(read("consistency:\n  bounded: 10s\n"), bounded);
        for wrong in
            ["manual", "sometimes", "bounded", "10s", "{bounded: 0s}", "{bounded: 10}", "{bounded: 1s, more: 1}"]
        {
            let error = read(&format!("log: info\nconsistency: {wrong}\n")).unwrap_err();
            assert!(error.starts_with("t.yaml:2:"), "{error}");
            assert!(error.contains("'bounded: 10s'") || (wrong == "manual" && error.contains("of a view")), "{error}");
        }
    }
}
