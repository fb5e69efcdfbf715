# SPDX-License-Identifier: Apache-2.0
"""Two faults in one supervised run: it must end as if there had been none."""
