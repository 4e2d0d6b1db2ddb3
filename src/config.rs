//! Options that `serve` and the offline commands share, checked once at start.

use std::path::PathBuf;

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
