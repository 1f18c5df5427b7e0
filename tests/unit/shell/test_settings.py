import pytest

from tfgpujob.shell.settings import SettingsError, from_environment

IMAGES = {"OPERATOR_IMAGE": "operator:1", "TRAINER_IMAGE": "trainer:1"}


def test_only_the_images_are_required() -> None:
    settings = from_environment(IMAGES)
    assert settings.config.operator_image == "operator:1"
    assert settings.watch_namespaces == ()
    assert settings.watch_nodes
    assert settings.workers == 16
    assert settings.identity != from_environment(IMAGES).identity


def test_everything_can_be_set() -> None:
    settings = from_environment(
        {
            **IMAGES,
            "OPERATOR_NAMESPACE": "tfgpu-system",
            "POD_NAME": "tfgpu-operator-0",
            "WATCH_NAMESPACES": "team-a, team-b,",
            "EXCLUDE_NAMESPACES": "kube-system,tfgpu-system",
            "ALLOW_HOST_NAMESPACES": "team-a",
            "ALLOWED_SERVICE_ACCOUNTS": "team-a/trainer",
            "NETWORK_POLICY_NAMESPACES": "team-a",
            "OPERATOR_LABELS": "app=tfgpu,component=operator",
            "GANG_BACKENDS": "Volcano,Native",
            "GANG_DEFAULT": "Native",
            "COSCHEDULING_SCHEDULER": "second",
            "VOLUME_CLAIMS": "true",
            "DEVICE_CLAIMS": "true",
            "IMAGE_VOLUMES": "true",
            "WORKERS": "4",
            "PROGRESS_SECONDS": "0",
            "GPU_IDLE_SECONDS": "900",
            "WEBHOOK_URL": "https://hooks.example.com/a?token=b",
            "WEBHOOK_KEY": "c",
            "LOG_FORMAT": "text",
        }
    )
    assert settings.config.volume_claims and settings.config.device_claims and settings.config.image_volumes
    assert settings.namespace == "tfgpu-system"
    assert settings.identity == "tfgpu-operator-0"
    assert settings.watch_namespaces == ("team-a", "team-b")
    assert not settings.watch_nodes, "a Role gives no right to see them"
    assert settings.exclude_namespaces == {"kube-system", "tfgpu-system"}
    assert settings.config.allow_host_namespaces == {"team-a"}
    assert settings.config.allowed_service_accounts == {"team-a/trainer"}
    assert settings.config.network_policy_namespaces == {"team-a"}
    assert settings.config.operator_namespace == "tfgpu-system"
    assert dict(settings.config.operator_labels) == {"app": "tfgpu", "component": "operator"}
    assert settings.gang_backends == ("Volcano", "Native")
    assert (settings.config.default_gang, settings.config.coscheduling_scheduler) == ("Native", "second")
    assert settings.config.gangs == (), "nobody has asked the cluster yet"
    assert settings.workers == 4
    assert settings.progress_seconds == 0
    assert settings.config.idle_seconds == 900
    assert (settings.webhook_url, settings.webhook_key) == ("https://hooks.example.com/a?token=b", "c")
    assert "hooks.example.com" not in repr(settings)
    assert settings.log_format == "text"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "OPERATOR_IMAGE is not set: set it to"),
        ({"OPERATOR_IMAGE": "o"}, "TRAINER_IMAGE is not set"),
        ({**IMAGES, "WORKERS": "many"}, "WORKERS is 'many': set it to a whole number"),
        ({**IMAGES, "WORKERS": "0"}, "WORKERS is '0'"),
        ({**IMAGES, "PROGRESS_SECONDS": "5"}, "PROGRESS_SECONDS is 5: set it to 15 or more, or to 0"),
        (
            {**IMAGES, "WEBHOOK_URL": "hooks.example.com/a"},
            "WEBHOOK_URL is no URL that begins with https:// or http://",
        ),
        ({**IMAGES, "WEBHOOK_URL": "https://[/"}, "WEBHOOK_URL is no URL"),
        ({**IMAGES, "WEBHOOK_URL": "https://a"}, "WEBHOOK_KEY is not set: set it to the key"),
        ({**IMAGES, "OPERATOR_LABELS": "app"}, "OPERATOR_LABELS is 'app': set it to KEY=VALUE"),
        ({**IMAGES, "VOLUME_CLAIMS": "yes"}, "VOLUME_CLAIMS is 'yes': set it to false or true"),
        ({**IMAGES, "GANG_BACKENDS": "Kai"}, "GANG_BACKENDS is 'Kai': name any of Volcano, SchedulerPlugins, Native"),
        ({**IMAGES, "GANG_DEFAULT": "Volcano"}, "GANG_DEFAULT is 'Volcano': name one of GANG_BACKENDS"),
        (
            {**IMAGES, "WATCH_NAMESPACES": "a", "WATCH_NAMESPACE_SELECTOR": "gpu"},
            "WATCH_NAMESPACES and WATCH_NAMESPACE_SELECTOR are both set: leave one of them out",
        ),
        ({**IMAGES, "LOG_FORMAT": "xml"}, "LOG_FORMAT is 'xml': set it to json or text"),
    ],
)
def test_an_error_names_the_variable_and_the_fix(environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        from_environment(environment)
