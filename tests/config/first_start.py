"""Prepare the database of FOOTPLATE_HOME as a first start does, and print what then holds, as JSON."""

import json
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "serving.config.settings")

import django

django.setup()

from django.contrib.auth import authenticate, get_user_model  # noqa: E402
from django.contrib.auth.models import Group  # noqa: E402

from serving.config.bootstrap import first_run_file, prepare_database  # noqa: E402
from serving.tuning.selectors import configured_pool_names, current_tunables, pool_names, pools  # noqa: E402
from tests.admission.opening import open_with  # noqa: E402


def main() -> None:
    said: list[str] = []
    was_first = prepare_database(said.append, with_accounts=True)
    content = json.loads(first_run_file().read_text())
    operator = authenticate(username=content["username"], password=content["password"])
    principal = open_with(f"Bearer {content['api_key']}")
    print(
        json.dumps(
            {
                "was_first": was_first,
                "said": said,
                "content": content,
                "is_operator": operator is not None and operator.is_superuser,
                "num_users": get_user_model().objects.count(),
                "scopes": sorted(principal.scopes),
                "most_urgent": principal.account.most_urgent,
                "roles": sorted(Group.objects.values_list("name", flat=True)),
                "pools": pool_names(),
                "configured": configured_pool_names(),
                "models": {pool.name: pool.model for pool in pools()},
                "version": current_tunables("default").version,
            }
        )
    )


if __name__ == "__main__":
    main()
