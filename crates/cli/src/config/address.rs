use percent_encoding::percent_decode_str;
use url::Url;

/// A PostgreSQL URL in parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PostgresAddress {
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) database: String,
}

/// NATS servers, and the login that stood in their URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NatsAddress {
    pub(crate) servers: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| "not UTF-8 once decoded".to_owned())
}

/// Parses without ever repeating the URL, which may hold a password.
pub(crate) fn postgres(text: &str) -> Result<PostgresAddress, String> {
    let url = Url::parse(text).map_err(|error| {
        format!("not a URL ({error}): expected postgres://user@host:5432/database; percent-encode a password's special characters, or set source.password")
    })?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err(format!("scheme {}: expected postgres://", url.scheme()));
    }
    let mut host = decode(url.host_str().unwrap_or_default())?;
    for (key, value) in url.query_pairs() {
        match (key.as_ref(), value.as_ref()) {
            ("host", folder) => folder.clone_into(&mut host),
            ("sslmode", "disable" | "allow" | "prefer") => {}
            ("sslmode", mode) => {
                return Err(format!(
                    "sslmode={mode}: this version has no TLS to PostgreSQL; use sslmode=disable on a link that is trusted or tunnelled"
                ));
            }
            (other, _) => {
                return Err(format!("parameter {other} is not known; known are host and sslmode"));
            }
        }
    }
    if url.username().is_empty() {
        return Err("no user: expected postgres://user@host:5432/database".to_owned());
    }
    if host.is_empty() {
        "localhost".clone_into(&mut host);
    }
    let database = decode(url.path().trim_start_matches('/'))?;
    let user = decode(url.username())?;
    Ok(PostgresAddress {
        password: url.password().map(decode).transpose()?,
        host,
        port: url.port().unwrap_or(5432),
        database: if database.is_empty() { user.clone() } else { database },
        user,
    })
}

/// Parses one or more servers with commas between; never repeats a URL.
pub(crate) fn nats(text: &str) -> Result<NatsAddress, String> {
    let mut address = NatsAddress { servers: Vec::new(), user: None, password: None };
    for (index, part) in text.split(',').map(str::trim).enumerate() {
        let full = if part.contains("://") { part.to_owned() } else { format!("nats://{part}") };
        let url = Url::parse(&full).map_err(|error| {
            format!("server {index} is not a URL ({error}): expected nats://host:4222")
        })?;
        if url.scheme() != "nats" {
            return Err(format!("scheme {}: this version connects by nats:// only", url.scheme()));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host =
            host.ok_or_else(|| format!("server {index} has no host: expected nats://host:4222"))?;
        address.servers.push(format!("nats://{host}:{}", url.port().unwrap_or(4222)));
        if !url.username().is_empty() {
            address.user = Some(decode(url.username())?);
            address.password = url.password().map(decode).transpose()?;
        }
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_urls() {
        let full =
            postgres("postgres://relay:p%40ss%3Aw%2F%23%25%3F%20%C3%BC@db:5433/shop").unwrap();
        assert_eq!(full.password.as_deref(), Some("p@ss:w/#%? ü"));
        assert_eq!((full.user.as_str(), full.host.as_str(), full.port), ("relay", "db", 5433));
        assert_eq!(full.database, "shop");
        let socket = postgres("postgresql://relay@localhost/shop?host=/run/postgresql").unwrap();
        assert_eq!((socket.host.as_str(), socket.port), ("/run/postgresql", 5432));
        assert_eq!(postgres("postgres://relay@db").unwrap().database, "relay");
        for (url, words) in [
            ("db:5432", "scheme db"),
            ("postgres://db/shop", "no user"),
            ("postgres://u:se@cret@db/shop?sslmode=verify-full", "this version has no TLS"),
            ("postgres://u@db/shop?foo=1", "parameter foo is not known"),
            ("postgres://u:secret@db:port/shop", "not a URL"),
        ] {
            let error = postgres(url).unwrap_err();
            assert!(error.contains(words) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn nats_urls() {
        let address = nats("nats://u:p%40s@a, b:4333").unwrap();
        assert_eq!(address.servers, ["nats://a:4222", "nats://b:4333"]);
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("u"), Some("p@s"))
        );
        for (url, words) in
            [("http://a", "scheme http"), ("tls://a", "scheme tls"), ("", "has no host")]
        {
            assert!(nats(url).unwrap_err().contains(words), "{url}");
        }
    }
}
