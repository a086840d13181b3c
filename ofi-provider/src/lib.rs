//! Native libfabric RDM provider over the ring API.
