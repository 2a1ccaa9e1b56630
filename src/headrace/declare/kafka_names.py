"""The names of settings of Kafka's client."""

from __future__ import annotations

_KAFKA = """
    bootstrap.servers client.id client.rack client.dns.lookup security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.password sasl.jaas.config sasl.kerberos.service.name
    sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope
    ssl.truststore.location ssl.truststore.password ssl.truststore.type ssl.truststore.certificates
    ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.keystore.key
    ssl.keystore.certificate.chain ssl.key.password ssl.key.location ssl.ca.location ssl.certificate.location
    ssl.ca.pem ssl.certificate.pem ssl.key.pem ssl.crl.location enable.ssl.certificate.verification
    ssl.endpoint.identification.algorithm ssl.enabled.protocols ssl.protocol ssl.cipher.suites
    fetch.min.bytes fetch.max.bytes fetch.max.wait.ms max.partition.fetch.bytes max.poll.records
    max.poll.interval.ms receive.buffer.bytes send.buffer.bytes request.timeout.ms session.timeout.ms
    heartbeat.interval.ms default.api.timeout.ms connections.max.idle.ms metadata.max.age.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    socket.connection.setup.timeout.ms isolation.level group.id check.crcs
    schema.registry.url schema.registry.basic.auth.user.info
"""

KAFKA_SETTINGS = frozenset(_KAFKA.split())
"""Kafka client settings that are suggested for a misspelt key; other keys are allowed, too."""
